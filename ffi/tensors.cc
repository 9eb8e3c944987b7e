#include "tensors.h"

#include <string>
#include <utility>

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

bool IsContiguous(const DLTensor& tensor) {
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

nb::object Checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object ToTuple(const int64_t* values, int32_t size) {
  nb::object tuple = Checked(PyTuple_New(size));
  for (int32_t i = 0; i < size; ++i) {
    PyTuple_SetItem(tuple.ptr(), i, Checked(PyLong_FromLongLong(values[i])).release().ptr());
  }
  return tuple;
}

// False where a tensor is not as the kernel wants it, and nothing was done.
bool Launch(const Tensors& tensors, Launcher& launcher, uint64_t alignment,
            const nb::list& operands, const nb::list& results) {
  const size_t n_results = results.size();
  if (alignment == 0 || static_cast<int64_t>(n_results) != launcher.n_results() || n_results == 0) {
    return false;
  }
  Buffers buffers;
  DLTensor read;
  if (!tensors.Read(results[0], &read)) return false;
  const int device = read.device.device_id;
  for (const nb::handle operand : operands) {
    if (!tensors.Read(operand, &read) || read.device.device_id != device ||
        !tensors.Fits(operand, read, alignment)) {
      return false;
    }
    buffers.push_back(ToBuffer(read, false));
  }
  for (const nb::handle result : results) {
    if (!tensors.AddResult(result, device, &buffers)) return false;
  }
  tensors.Enqueue(launcher, buffers, device);
  return true;
}

nb::object Empty(const Tensors& tensors, nb::handle beside, nb::handle shape, nb::handle dtype) {
  DLTensor read;
  if (!tensors.Read(beside, &read) || read.device.device_type != kDLCUDA) return nb::none();
  if (shape.is_none()) return tensors.New(read.shape, read.ndim, dtype, read.device.device_id);
  InlineVector<int64_t, 8> sizes;
  for (const nb::handle size : nb::cast<nb::tuple>(shape)) sizes.push_back(nb::cast<int64_t>(size));
  return tensors.New(sizes.data(), static_cast<int32_t>(sizes.size()), dtype,
                     read.device.device_id);
}

}  // namespace

Tensors::Tensors(nb::object exchange, nb::object is_neg, nb::object empty, nb::object empty_at_once)
    : exchange_(std::move(exchange)),
      is_neg_(std::move(is_neg)),
      empty_(std::move(empty)),
      empty_at_once_(std::move(empty_at_once)),
      names_(nb::make_tuple("dtype", "device")),
      api_(Exchange(exchange_)) {}

bool Tensors::Read(const nb::handle tensor, DLTensor* read) const {
  if (api_->dltensor_from_py_object_no_sync(tensor.ptr(), read) != 0) {
    PyErr_Clear();
    return false;
  }
  return read->ndim == 0 || (read->ndim > 0 && read->shape != nullptr && read->strides != nullptr);
}

bool Tensors::Fits(const nb::handle tensor, const DLTensor& read, uint64_t alignment) const {
  const Buffer buffer = ToBuffer(read, false);
  // Zeros that autograd makes, and what was freed, have no address; of a complex tensor the
  // conjugate may be meant.
  if (read.device.device_type != kDLCUDA || buffer.bytes == 0 || buffer.address == 0 ||
      buffer.address % alignment != 0 || read.dtype.code == kDLComplex || !IsContiguous(read)) {
    return false;
  }
  const nb::object negated =
      Checked(PyObject_CallFunctionObjArgs(is_neg_.ptr(), tensor.ptr(), nullptr));
  return negated.ptr() == Py_False;
}

nb::object Tensors::New(const int64_t* shape, int32_t ndim, nb::handle dtype, int device) const {
  InlineVector<int64_t, 8> strides;
  for (int32_t i = 0; i < ndim; ++i) strides.push_back(1);
  for (int32_t i = ndim - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  const nb::object sizes = ToTuple(shape, ndim), steps = ToTuple(strides.data(), ndim);
  if (!empty_at_once_.is_none() && cuda::IsCurrent(device)) {
    return Checked(PyObject_CallFunctionObjArgs(empty_at_once_.ptr(), sizes.ptr(), steps.ptr(),
                                                dtype.ptr(), nullptr));
  }
  const nb::int_ index(device);
  PyObject* arguments[] = {sizes.ptr(), steps.ptr(), dtype.ptr(), index.ptr()};
  return Checked(PyObject_Vectorcall(empty_.ptr(), arguments, 2, names_.ptr()));
}

bool Tensors::AddResult(const nb::handle tensor, int device, Buffers* buffers) const {
  DLTensor read;
  if (!Read(tensor, &read) || read.device.device_type != kDLCUDA ||
      read.device.device_id != device || !IsContiguous(read)) {
    return false;
  }
  buffers->push_back(ToBuffer(read, true));
  return true;
}

void Tensors::Enqueue(Launcher& launcher, const Buffers& buffers, int device) const {
  void* stream = nullptr;
  if (api_->current_work_stream(kDLCUDA, device, &stream) != 0) throw nb::python_error();
  RaiseIfError(launcher.Enqueue(buffers, device, stream));
}

Buffer ToBuffer(const DLTensor& tensor, bool is_result) {
  uint64_t bytes = (uint64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  for (int32_t i = 0; i < tensor.ndim; ++i) bytes *= static_cast<uint64_t>(tensor.shape[i]);
  return {reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset, bytes, is_result};
}

void BindTensors(nb::module_& m) {
  nb::class_<Tensors>(m, "Tensors", "PyTorch's tensors, read and made with few calls of Python's.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), nb::arg("exchange"),
           nb::arg("is_neg"), nb::arg("empty"), nb::arg("empty_at_once").none(),
           nb::sig("def __init__(self, exchange: object, is_neg: object, empty: object, "
                   "empty_at_once: object) -> None"),
           R"(Takes PyTorch's own functions.

Args:
    exchange: DLPack's C exchange API, a capsule.
    is_neg: torch.Tensor.is_neg.
    empty: torch.empty_strided.
    empty_at_once: the same of sizes, strides and dtype, on the current device, and faster; or None.

Raises:
    TypeError: exchange is no such capsule.
    ValueError: it is of another version.)")
      .def("launch", &Launch, nb::arg("launcher"), nb::arg("alignment"), nb::arg("operands"),
           nb::arg("results"),
           nb::sig(
               "def launch(self, launcher: Launcher, alignment: int, operands: list[typing.Any], "
               "results: list[typing.Any]) -> bool"),
           R"(Enqueues a launch on the current stream of the tensors' GPU.

False, and nothing is done, for tensors that are not on one GPU, operands that have no elements or
that a kernel does not read as they are, and results that are not contiguous.

Args:
    launcher: the record.
    alignment: what the addresses of operands must be multiples of, in bytes.
    operands: tensors.
    results: tensors, new ones or operands.)")
      .def("empty", &Empty, nb::arg("beside"), nb::arg("shape").none(), nb::arg("dtype"),
           nb::sig("def empty(self, beside: object, shape: tuple[int, ...] | None, dtype: object) "
                   "-> typing.Any"),
           R"(A new contiguous tensor on another's GPU; None where that is on none.

Args:
    beside: the other.
    shape: None: the other's.
    dtype: torch's.)");
}

}  // namespace jax_ptx
