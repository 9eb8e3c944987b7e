// Calls on PyTorch's tensors whose kernel ran before. They are read by DLPack's C exchange API, as
// the launch itself takes less of the host's time than a question to each by a call of Python's.

#include <dlpack.h>
#include <nanobind/nanobind.h>

#include <array>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "launcher.h"
#include "python.h"

namespace nb = nanobind;

namespace jax_ptx {
namespace {

constexpr char kCapsule[] = "dlpack_exchange_api";

const DLPackExchangeAPI* Exchange(const nb::handle capsule) {
  if (!PyCapsule_IsValid(capsule.ptr(), kCapsule)) {
    throw nb::type_error("exchange must be a capsule of the name dlpack_exchange_api");
  }
  auto* header =
      static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) {
    header = header->prev_api;
  }
  const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  if (api == nullptr || api->dltensor_from_py_object_no_sync == nullptr ||
      api->current_work_stream == nullptr) {
    throw nb::value_error(
        ("exchange must have version " + std::to_string(DLPACK_MAJOR_VERSION) +
         " of DLPack's C exchange API, with its functions for tensors and streams")
            .c_str());
  }
  return api;
}

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

uint64_t Address(const DLTensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
}

uint64_t Bytes(const DLTensor& tensor) {
  uint64_t bytes = (uint64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  for (int32_t i = 0; i < tensor.ndim; ++i) bytes *= static_cast<uint64_t>(tensor.shape[i]);
  return bytes;
}

bool IsContiguous(const DLTensor& tensor) {
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

nb::tuple ToTuple(const int64_t* values, int32_t size) {
  nb::object tuple = nb::steal(PyTuple_New(size));
  for (int32_t i = 0; tuple.is_valid() && i < size; ++i) {
    PyObject* value = PyLong_FromLongLong(values[i]);
    if (value == nullptr) throw nb::python_error();
    PyTuple_SetItem(tuple.ptr(), i, value);
  }
  if (!tuple.is_valid()) throw nb::python_error();
  return nb::steal<nb::tuple>(tuple.release());
}

struct Known {
  Launcher* launcher;
  nb::object keeps_launcher, plan, dtype, rows_dtype;
  uint64_t alignment;
};

class KnownCalls {
 public:
  KnownCalls(nb::object exchange, nb::object is_neg, nb::object empty, nb::object empty_at_once)
      : exchange_(std::move(exchange)),
        is_neg_(std::move(is_neg)),
        empty_(std::move(empty)),
        empty_at_once_(std::move(empty_at_once)),
        names_(nb::make_tuple("dtype", "device")),
        api_(Exchange(exchange_)) {}
  KnownCalls(const KnownCalls&) = delete;

  void Keep(nb::object plan, nb::object launcher, uint64_t alignment, nb::handle x,
            nb::handle weight, const nb::tuple& options, nb::object rows_dtype) {
    DLTensor from_x, from_weight;
    Key key;
    auto* as_launcher = nb::cast<Launcher*>(launcher);
    const bool with_rows = !rows_dtype.is_none();
    if (as_launcher->n_results() != 1 + with_rows || alignment == 0 || !Read(x, &from_x) ||
        !Read(weight, &from_weight) || !ToKey(from_x, from_weight, options, with_rows, &key)) {
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
    if (!Read(x, &from_x) || !Read(weight, &from_weight) ||
        !ToKey(from_x, from_weight, options, with_rows, &key)) {
      return nb::none();
    }
    const Known* known = Find(key);
    if (known == nullptr || !Fits(x, from_x, known->alignment) ||
        !Fits(weight, from_weight, known->alignment) ||
        from_weight.device.device_id != from_x.device.device_id) {
      return nb::none();
    }
    const int device = from_x.device.device_id;
    Buffers buffers;
    buffers.push_back({Address(from_x), Bytes(from_x)});
    buffers.push_back({Address(from_weight), Bytes(from_weight)});
    const nb::object y = New(from_x.shape, from_x.ndim, known->dtype, device);
    if (!Push(y, device, &buffers)) return nb::none();
    nb::object rows;
    if (with_rows) {
      int64_t n_rows = 1;
      for (int32_t i = 0; i + 1 < from_x.ndim; ++i) n_rows *= from_x.shape[i];
      rows = New(&n_rows, 1, known->rows_dtype, device);
      if (!Push(rows, device, &buffers)) return nb::none();
    }
    void* stream = nullptr;
    if (api_->current_work_stream(kDLCUDA, device, &stream) != 0) throw nb::python_error();
    RaiseIfError(known->launcher->Enqueue(buffers, device, stream));
    return with_rows ? nb::make_tuple(known->plan, y, rows) : nb::make_tuple(known->plan, y);
  }

 private:
  static constexpr size_t kMost = 4096;

  // False for what is a tensor in name alone, as one of torch.func's or a sparse one.
  bool Read(const nb::handle tensor, DLTensor* read) const {
    if (api_->dltensor_from_py_object_no_sync(tensor.ptr(), read) != 0) {
      PyErr_Clear();
      return false;
    }
    return read->ndim == 0 ||
           (read->ndim > 0 && read->shape != nullptr && read->strides != nullptr);
  }

  const Known* Find(const Key& key) {
    const nb::ft_lock_guard guard(mutex_);
    const auto found = known_.find(key);
    return found != known_.end() ? &found->second : nullptr;
  }

  // Whether a kernel reads it as it is, and it has something to read.
  bool Fits(const nb::handle tensor, const DLTensor& read, uint64_t alignment) const {
    if (read.device.device_type != kDLCUDA || Bytes(read) == 0 || Address(read) % alignment != 0 ||
        !IsContiguous(read)) {
      return false;
    }
    const nb::object negated =
        nb::steal(PyObject_CallFunctionObjArgs(is_neg_.ptr(), tensor.ptr(), nullptr));
    if (!negated.is_valid()) throw nb::python_error();
    return negated.ptr() == Py_False;
  }

  // A contiguous tensor, on the device.
  nb::object New(const int64_t* shape, int32_t ndim, const nb::object& dtype, int device) const {
    InlineVector<int64_t, 8> strides;
    for (int32_t i = 0; i < ndim; ++i) strides.push_back(1);
    for (int32_t i = ndim - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    const nb::tuple sizes = ToTuple(shape, ndim), steps = ToTuple(strides.data(), ndim);
    nb::object made;
    if (!empty_at_once_.is_none() && cuda::IsCurrent(device)) {
      made = nb::steal(PyObject_CallFunctionObjArgs(empty_at_once_.ptr(), sizes.ptr(), steps.ptr(),
                                                    dtype.ptr(), nullptr));
    } else {
      const nb::int_ index(device);
      PyObject* arguments[] = {sizes.ptr(), steps.ptr(), dtype.ptr(), index.ptr()};
      made = nb::steal(PyObject_Vectorcall(empty_.ptr(), arguments, 2, names_.ptr()));
    }
    if (!made.is_valid()) throw nb::python_error();
    return made;
  }

  bool Push(const nb::object& result, int device, Buffers* buffers) const {
    DLTensor read;
    if (!Read(result, &read) || read.device.device_type != kDLCUDA ||
        read.device.device_id != device) {
      return false;
    }
    buffers->push_back({Address(read), Bytes(read), true});
    return true;
  }

  const nb::object exchange_, is_neg_, empty_, empty_at_once_;
  const nb::tuple names_;
  const DLPackExchangeAPI* const api_;
  nb::ft_mutex mutex_;
  std::unordered_map<Key, Known, Hash> known_;
};

}  // namespace

void BindTensors(nb::module_& m) {
  nb::class_<KnownCalls>(
      m, "KnownCalls",
      "Kernels of x, `[..., n]`, and a weight, `[n]`, that ran on PyTorch's tensors before.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), nb::arg("exchange"),
           nb::arg("is_neg"), nb::arg("empty"), nb::arg("empty_at_once").none(),
           nb::sig("def __init__(self, exchange: object, is_neg: object, empty: object, "
                   "empty_at_once: object) -> None"),
           R"(Reads tensors by PyTorch's own functions.

Args:
    exchange: DLPack's C exchange API, a capsule.
    is_neg: torch.Tensor.is_neg.
    empty: torch.empty_strided.
    empty_at_once: the same of sizes, strides and dtype, on the current device, and faster; or None.

Raises:
    TypeError: exchange is no such capsule.
    ValueError: it is of another version.)")
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
