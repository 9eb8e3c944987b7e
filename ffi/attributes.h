// The launch record as XLA hands it over, for its bindings: `.Attrs<LaunchRecord>()`.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "launch.h"
#include "xla/ffi/api/ffi.h"

namespace jax_ptx {

constexpr int64_t kAttributes = 13;

// Reads the attributes by place: XLA sorts them by name. All of it is in line and nothing is
// cleared first, which takes a third to a half of the time of XLA's binding of each attribute.
class AttributeReader {
 public:
  explicit AttributeReader(const XLA_FFI_Attrs& all) : all_(all) {}

  template <size_t N>
  [[gnu::always_inline]] std::string_view Text(int64_t place, const char (&name)[N]) {
    const auto* text = Find<XLA_FFI_ByteSpan>(place, name, XLA_FFI_AttrType_STRING);
    return text != nullptr ? std::string_view(text->ptr, text->len) : std::string_view();
  }

  template <size_t N>
  [[gnu::always_inline]] int64_t Number(int64_t place, const char (&name)[N]) {
    const auto* scalar = FindInt64<XLA_FFI_Scalar>(place, name, XLA_FFI_AttrType_SCALAR);
    return scalar != nullptr ? *static_cast<const int64_t*>(scalar->value) : 0;
  }

  template <size_t N>
  [[gnu::always_inline]] Int64s Numbers(int64_t place, const char (&name)[N]) {
    const auto* array = FindInt64<XLA_FFI_Array>(place, name, XLA_FFI_AttrType_ARRAY);
    return array != nullptr ? Int64s{static_cast<const int64_t*>(array->data), array->size}
                            : Int64s{};
  }

  bool ok() const { return expected_ == nullptr; }

  // What was expected last in a place where something else came. Only when not ok.
  void Explain(xla::ffi::DiagnosticEngine& diagnostic) const {
    const XLA_FFI_ByteSpan& came = *all_.names[place_];
    diagnostic.Emit("Wrong attribute type: expected ")
        << (type_ == XLA_FFI_AttrType_STRING ? "" : "int64 ") << type_ << " `" << expected_
        << "` but got " << all_.types[place_] << " `" << std::string_view(came.ptr, came.len)
        << "`";
  }

 private:
  template <class T, size_t N>
  [[gnu::always_inline]] const T* Find(int64_t place, const char (&name)[N],
                                       XLA_FFI_AttrType type) {
    const XLA_FFI_ByteSpan& came = *all_.names[place];
    if (came.len == N - 1 && std::memcmp(came.ptr, name, N - 1) == 0 && all_.types[place] == type) {
      return static_cast<const T*>(all_.attrs[place]);
    }
    return Wrong(place, name, type), nullptr;
  }

  template <class T, size_t N>
  [[gnu::always_inline]] const T* FindInt64(int64_t place, const char (&name)[N],
                                            XLA_FFI_AttrType type) {
    const T* found = Find<T>(place, name, type);
    if (found == nullptr || found->dtype == XLA_FFI_DataType_S64) return found;
    return Wrong(place, name, type), nullptr;
  }

  void Wrong(int64_t place, const char* name, XLA_FFI_AttrType type) {
    place_ = place;
    expected_ = name;
    type_ = type;
  }

  const XLA_FFI_Attrs& all_;
  const char* expected_ = nullptr;
  int64_t place_ = 0;
  XLA_FFI_AttrType type_{};
};

}  // namespace jax_ptx

//   ptx, entry       string     the text and the name of its .entry
//   key              i64        hash of the two
//   grid, block, cluster        i64[3]
//   smem_bytes, rows_per_cta    i64
//   unit_bytes, dims i64[P]     of each tensor
//   global_dims      i64[D + L] of each run-time dimension, and of operand 0's L leading ones
//   batch            i64[R]     leading batch axes
//   batch_mask       i64[P*R]
template <>
struct xla::ffi::AttrDecoding<jax_ptx::LaunchRecord> {
  using Type = jax_ptx::LaunchRecord;

  static std::optional<Type> Decode(XLA_FFI_AttrType, void* dictionary,
                                    DiagnosticEngine& diagnostic) {
    const auto& all = *static_cast<const XLA_FFI_Attrs*>(dictionary);
    if (all.size != jax_ptx::kAttributes) {
      return diagnostic.Emit("Wrong number of attributes: expected ")
             << jax_ptx::kAttributes << " but got " << all.size;
    }
    jax_ptx::AttributeReader read(all);
    std::optional<Type> record = Type{read.Text(9, "ptx"),
                                      read.Text(5, "entry"),
                                      read.Number(8, "key"),
                                      read.Numbers(7, "grid"),
                                      read.Numbers(2, "block"),
                                      read.Numbers(3, "cluster"),
                                      read.Number(11, "smem_bytes"),
                                      read.Number(10, "rows_per_cta"),
                                      read.Numbers(12, "unit_bytes"),
                                      read.Numbers(4, "dims"),
                                      read.Numbers(6, "global_dims"),
                                      read.Numbers(0, "batch"),
                                      read.Numbers(1, "batch_mask")};
    if (read.ok()) return record;
    read.Explain(diagnostic);
    return std::nullopt;
  }
};
