// There is no FFI state: XLA skips instantiate when an executable comes from a compile cache, so
// every stage gets the whole record and finds its kernel by content.

#include "handlers.h"

#include <cuda.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "cuda/execute.h"
#include "emulate.h"
#include "launch.h"
#include "parallel.h"
#include "status.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

template <>
struct xla::ffi::AttrDecoding<jax_ptx::Int64s> {
  using Type = jax_ptx::Int64s;
  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attribute,
                                    DiagnosticEngine& diagnostic) {
    auto span = AttrDecoding<Span<const int64_t>>::Decode(type, attribute, diagnostic);
    if (!span) return std::nullopt;
    return Type{span->begin(), span->size()};
  }
};

namespace jax_ptx {
namespace {

ffi::Error ToError(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return ffi::Error::Success();
    case Code::kInvalidArgument:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message());
    case Code::kUnimplemented:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message());
    case Code::kFailedPrecondition:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, status.message());
    case Code::kResourceExhausted:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, status.message());
    case Code::kInternal:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message());
}

Buffer ToBuffer(const ffi::AnyBuffer& buffer, bool is_result) {
  const auto shape = buffer.dimensions();  // XLA's, for the length of the call
  return {reinterpret_cast<uint64_t>(buffer.untyped_data()),
          buffer.size_bytes(),
          is_result,
          /*is_aliased=*/false,
          {shape.begin(), shape.size()}};
}

// Operands, then results: the order of the entry's parameters.
ffi::Error ToBuffers(ffi::RemainingArgs operands, ffi::RemainingRets results, Buffers* buffers) {
  for (size_t i = 0; i < operands.size(); ++i) {
    auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    buffers->push_back(ToBuffer(*operand, false));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return result.error();
    buffers->push_back(ToBuffer(**result, true));
  }
  return ffi::Error::Success();
}

// Binds the attributes by name, in the order of LaunchRecord's fields, which are built from them:
//   ptx, entry       string     the text and the name of its .entry
//   key              i64        hash of the two
//   grid, block, cluster        i64[3]
//   smem_bytes, rows_per_cta    i64
//   unit_bytes, dims i64[P]     of each tensor
//   global_dims      i64[D + L] of each run-time dimension, and of operand 0's L leading ones
//   batch            i64[R]     leading batch axes
//   batch_mask       i64[P*R]
template <class Binding>
auto WithRecord(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("ptx")
      .template Attr<std::string_view>("entry")
      .template Attr<int64_t>("key")
      .template Attr<Int64s>("grid")
      .template Attr<Int64s>("block")
      .template Attr<Int64s>("cluster")
      .template Attr<int64_t>("smem_bytes")
      .template Attr<int64_t>("rows_per_cta")
      .template Attr<Int64s>("unit_bytes")
      .template Attr<Int64s>("dims")
      .template Attr<Int64s>("global_dims")
      .template Attr<Int64s>("batch")
      .template Attr<Int64s>("batch_mask");
}

constexpr auto kCpuInstantiate = [](auto... attributes) {
  return ToError(PrepareEmulation(LaunchRecord{attributes...}));
};

constexpr auto kCpuExecute = [](ffi::ThreadPool pool, ffi::RemainingArgs operands,
                                ffi::RemainingRets results, auto... attributes) {
  Buffers buffers;
  if (ffi::Error error = ToBuffers(operands, results, &buffers); error.failure()) return error;
  const auto parallel_for = [&pool](int64_t n, const std::function<void(int64_t)>& task) {
    RunShared(n, task, pool.num_threads() - 1,
              [&pool](auto helper) { pool.Schedule(std::move(helper)); });
  };
  return ToError(Emulate(LaunchRecord{attributes...}, buffers, {}, {}, parallel_for));
};

constexpr auto kCudaInstantiate = [](auto... attributes) {
  return ToError(Validate(LaunchRecord{attributes...}));
};

constexpr auto kCudaInitialize = [](int32_t device, auto... attributes) {
  return ToError(cuda::Load(LaunchRecord{attributes...}, device));
};

constexpr auto kCudaExecute = [](CUstream stream, int32_t device, ffi::RemainingArgs operands,
                                 ffi::RemainingRets results, auto... attributes) {
  Buffers buffers;
  if (ffi::Error error = ToBuffers(operands, results, &buffers); error.failure()) return error;
  return ToError(cuda::Launch(LaunchRecord{attributes...}, buffers, device, stream));
};

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCpuInstantiate, kCpuInstantiate,
                              WithRecord(ffi::Ffi::BindInstantiate()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxPtxCpuExecute, kCpuExecute,
    WithRecord(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCudaInstantiate, kCudaInstantiate,
                              WithRecord(ffi::Ffi::BindInstantiate()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxPtxCudaInitialize, kCudaInitialize,
    WithRecord(ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<ffi::DeviceOrdinal>()));
// The trait belongs to this stage: XLA may record it into a CUDA graph and replay that.
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCudaExecute, kCudaExecute,
                              WithRecord(ffi::Ffi::Bind()
                                             .Ctx<ffi::PlatformStream<CUstream>>()
                                             .Ctx<ffi::DeviceOrdinal>()
                                             .RemainingArgs()
                                             .RemainingRets()),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_ptx
