// Calls of kernels on PyTorch's tensors that ran before: plan, results and launch in one step.

#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "launcher.h"
#include "python.h"
#include "tensors.h"

namespace nb = nanobind;

namespace jax_ptx {
namespace {

// What makes calls alike: row length, dtypes, options by type and value.
struct Key {
  std::array<uint64_t, 8> words{};
  bool operator==(const Key& other) const { return words == other.words; }
};

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (const uint64_t word : key.words) hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
  }
};

uint64_t Number(const DLDataType& dtype) {
  return dtype.code | uint64_t{dtype.bits} << 8 | uint64_t{dtype.lanes} << 16;
}

// False for options that are not all floats, bools and None.
bool ToKey(const DLTensor& x, const DLTensor& weight, const nb::tuple& options, bool with_rows,
           Key* key) {
  if (x.ndim < 1 || weight.ndim != 1 || weight.shape[0] != x.shape[x.ndim - 1]) return false;
  size_t at = 0;
  key->words[at++] = static_cast<uint64_t>(weight.shape[0]);
  key->words[at++] = Number(x.dtype) | Number(weight.dtype) << 32;
  uint64_t& kinds = key->words[at++];  // a digit for each option
  kinds = with_rows;
  const Py_ssize_t n_options = PyTuple_Size(options.ptr());
  if (static_cast<size_t>(n_options) > key->words.size() - at) return false;
  for (Py_ssize_t i = 0; i < n_options; ++i) {
    PyObject* option = PyTuple_GetItem(options.ptr(), i);
    if (PyFloat_CheckExact(option)) {
      const double value = PyFloat_AsDouble(option);
      std::memcpy(&key->words[at++], &value, sizeof(value));
      kinds = 4 * kinds + 1;
    } else if (PyBool_Check(option)) {
      key->words[at++] = option == Py_True;
      kinds = 4 * kinds + 2;
    } else if (option == Py_None) {
      key->words[at++] = 0;
      kinds = 4 * kinds + 3;
    } else {
      return false;
    }
  }
  return true;
}

struct Known {
  Launcher* launcher;
  nb::object keeps_launcher, plan, dtype, rows_dtype;
  uint64_t alignment;
};

class KnownCalls {
 public:
  explicit KnownCalls(nb::object tensors)
      : keeps_tensors_(std::move(tensors)), tensors_(*nb::cast<const Tensors*>(keeps_tensors_)) {}
  KnownCalls(const KnownCalls&) = delete;

  void Keep(nb::object plan, nb::object launcher, uint64_t alignment, nb::handle x,
            nb::handle weight, const nb::tuple& options, nb::object rows_dtype) {
    DLTensor from_x, from_weight;
    Key key;
    auto* as_launcher = nb::cast<Launcher*>(launcher);
    const bool with_rows = !rows_dtype.is_none();
    if (as_launcher->n_results() != 1 + with_rows || alignment == 0 || !tensors_.Read(x, &from_x) ||
        !tensors_.Read(weight, &from_weight) ||
        !ToKey(from_x, from_weight, options, with_rows, &key)) {
      return;
    }
    nb::object dtype = x.attr("dtype");
    const nb::ft_lock_guard guard(mutex_);
    if (known_.size() >= kMost) return;  // none is forgotten: another thread may be at it
    known_.emplace(key, Known{as_launcher, std::move(launcher), std::move(plan), std::move(dtype),
                              std::move(rows_dtype), alignment});
  }

  nb::object Call(nb::handle x, nb::handle weight, const nb::tuple& options, bool with_rows) {
    DLTensor from_x, from_weight;
    Key key;
    if (!tensors_.Read(x, &from_x) || !tensors_.Read(weight, &from_weight) ||
        !ToKey(from_x, from_weight, options, with_rows, &key)) {
      return nb::none();
    }
    const Known* known = Find(key);
    if (known == nullptr || !tensors_.Fits(x, from_x, known->alignment) ||
        !tensors_.Fits(weight, from_weight, known->alignment) ||
        from_weight.device.device_id != from_x.device.device_id) {
      return nb::none();
    }
    const int device = from_x.device.device_id;
    Buffers buffers;
    buffers.push_back(ToBuffer(from_x, false));
    buffers.push_back(ToBuffer(from_weight, false));
    const nb::object y = tensors_.New(from_x.shape, from_x.ndim, known->dtype, device);
    if (!tensors_.AddResult(y, device, &buffers)) return nb::none();
    nb::object rows;
    if (with_rows) {
      rows = tensors_.New(from_x.shape, from_x.ndim - 1, known->rows_dtype, device);
      if (!tensors_.AddResult(rows, device, &buffers)) return nb::none();
    }
    tensors_.Enqueue(*known->launcher, buffers, device);
    return with_rows ? nb::make_tuple(known->plan, y, rows) : nb::make_tuple(known->plan, y);
  }

 private:
  static constexpr size_t kMost = 4096;

  const Known* Find(const Key& key) {
    const nb::ft_lock_guard guard(mutex_);
    const auto found = known_.find(key);
    return found != known_.end() ? &found->second : nullptr;
  }

  const nb::object keeps_tensors_;
  const Tensors& tensors_;
  nb::ft_mutex mutex_;
  std::unordered_map<Key, Known, Hash> known_;
};

}  // namespace

void BindKnownCalls(nb::module_& m) {
  nb::class_<KnownCalls>(
      m, "KnownCalls",
      "Kernels of x, `[..., n]`, and a weight, `[n]`, that ran on PyTorch's tensors before.")
      .def(nb::init<nb::object>(), nb::arg("tensors"),
           nb::sig("def __init__(self, tensors: Tensors) -> None"), "None is known yet.")
      .def("keep", &KnownCalls::Keep, nb::arg("plan"), nb::arg("launcher"), nb::arg("alignment"),
           nb::arg("x"), nb::arg("weight"), nb::arg("options"), nb::arg("rows_dtype").none(),
           nb::sig("def keep(self, plan: object, launcher: Launcher, alignment: int, x: object, "
                   "weight: object, options: tuple[object, ...], rows_dtype: object) -> None"),
           R"(From now on, calls of this row length, of these dtypes and options are known.

Args:
    plan: what such a call gives back beside its results.
    launcher: gives x's like and, with a rows_dtype, an element for each row.
    alignment: what the addresses of x and of the weight must be multiples of, in bytes.
    x: a tensor of such a call.
    weight: the same.
    options: floats, bools and None.
    rows_dtype: of the second result; None: there is none.)")
      .def(
          "__call__", &KnownCalls::Call, nb::arg("x"), nb::arg("weight"), nb::arg("options"),
          nb::arg("with_rows"),
          nb::sig("def __call__(self, x: object, weight: object, "
                  "options: tuple[object, ...], with_rows: bool) -> tuple[typing.Any, ...] | None"),
          R"(The plan and the results of a known call, which runs on the current stream; or None.

None also for tensors that are not on one GPU, have no elements, or that a kernel does not read as
they are. Asks nobody whether a gradient is needed or whether something traces.)");
}

}  // namespace jax_ptx
