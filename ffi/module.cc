// The Python module jax_ptx._ext: handlers for jax.ffi, and direct calls for PyTorch and the tests.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cuda/execute.h"
#include "emulate.h"
#include "handlers.h"
#include "launch.h"
#include "parallel.h"
#include "status.h"

namespace nb = nanobind;

namespace jax_ptx {
namespace {

// Raises what Python code expects for each kind of error.
void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  PyObject* type = PyExc_RuntimeError;
  if (status.code() == Code::kInvalidArgument) type = PyExc_ValueError;
  if (status.code() == Code::kUnimplemented) type = PyExc_NotImplementedError;
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

// A launch record read from a dict, with what its views point to. Made and destroyed with the GIL
// held.
class DictRecord {
 public:
  explicit DictRecord(nb::dict attributes) : attributes_(std::move(attributes)) {
    record.ptx = String("ptx");
    record.entry = String("entry");
    record.key = Integer(Get("key"));
    record.grid = Integers("grid");
    record.block = Integers("block");
    record.cluster = Integers("cluster");
    record.smem_bytes = Integer(Get("smem_bytes"));
    record.rows_per_cta = Integer(Get("rows_per_cta"));
    record.unit_bytes = Integers("unit_bytes");
    record.dims = Integers("dims");
    record.global_dims = Integers("global_dims");
    record.batch = Integers("batch");
    record.batch_mask = Integers("batch_mask");
  }

  LaunchRecord record;

 private:
  nb::object Get(const char* name) {
    if (!attributes_.contains(name)) {
      throw nb::value_error((std::string("attributes: '") + name + "' is missing").c_str());
    }
    return attributes_[name];
  }

  std::string_view String(const char* name) {
    const nb::object value = Get(name);
    Py_ssize_t size = 0;
    if (!nb::isinstance<nb::str>(value)) {
      throw nb::type_error((std::string("attributes: '") + name + "' must be a str").c_str());
    }
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    kept_.push_back(value);
    return {text, static_cast<size_t>(size)};
  }

  static int64_t Integer(const nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    const long long integer = PyLong_AsLongLong(index.ptr());
    if (integer == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return integer;
  }

  Int64s Integers(const char* name) {
    std::vector<int64_t>& values = values_[n_values_++];
    for (const nb::handle value : nb::iter(Get(name))) values.push_back(Integer(value));
    return {values.data(), values.size()};
  }

  nb::dict attributes_;
  std::vector<nb::object> kept_;
  std::vector<int64_t> values_[8];
  size_t n_values_ = 0;
};

void CheckResultCount(size_t buffers, int64_t n_results) {
  if (n_results < 0 || static_cast<size_t>(n_results) > buffers) {
    throw nb::value_error(("n_results must be between 0 and the number of buffers, " +
                           std::to_string(buffers) + ", got " + std::to_string(n_results))
                              .c_str());
  }
}

// A C-contiguous numpy array, of any dtype, as a buffer.
Buffer FromArray(const nb::handle array, size_t index, bool is_result) {
  const std::string name = "buffers[" + std::to_string(index) + "]";
  if (!nb::hasattr(array, "__array_interface__")) {
    throw nb::type_error((name + " must be a numpy array").c_str());
  }
  const nb::dict interface = nb::cast<nb::dict>(array.attr("__array_interface__"));
  const auto [address, read_only] = nb::cast<std::pair<uint64_t, bool>>(interface["data"]);
  if (!nb::cast<bool>(array.attr("flags").attr("c_contiguous"))) {
    throw nb::value_error(
        (name + " must be C-contiguous; pass numpy.ascontiguousarray(x)").c_str());
  }
  if (is_result && read_only) {
    throw nb::value_error((name + " is a result, and must be writable").c_str());
  }
  return {address, nb::cast<uint64_t>(array.attr("nbytes")), is_result};
}

// Threads made for one call: emulation takes far longer than their start.
void ParallelForOnThreads(int64_t n, const std::function<void(int64_t)>& task) {
  std::vector<std::thread> threads;
  RunShared(n, task, static_cast<int64_t>(std::thread::hardware_concurrency()) - 1,
            [&threads](auto helper) {
              try {
                threads.emplace_back(std::move(helper));
              } catch (const std::system_error&) {
                // No more threads to be had: those that are there, and the caller, do the work.
              }
            });
  for (std::thread& thread : threads) thread.join();
}

void EmulateArrays(nb::dict attributes, nb::sequence list, int64_t n_results, bool race_check,
                   uint64_t step_limit) {
  const DictRecord holder(std::move(attributes));
  const nb::tuple arrays(list);  // keeps them, whatever other threads do to a list
  CheckResultCount(arrays.size(), n_results);
  Buffers buffers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    buffers.push_back(FromArray(arrays[i], i, i + n_results >= arrays.size()));
  }
  emulator::Options options;
  options.race_check = race_check;
  if (step_limit != 0) options.step_limit = step_limit;
  Status status;
  {
    nb::gil_scoped_release release;
    status = Emulate(holder.record, buffers, options, ParallelForOnThreads);
  }
  RaiseIfError(status);
}

void LaunchOnDevice(nb::dict attributes, nb::sequence list, int64_t n_results, int device,
                    uint64_t stream) {
  const DictRecord holder(std::move(attributes));
  const nb::tuple addresses(list);
  CheckResultCount(addresses.size(), n_results);
  Buffers buffers;
  for (size_t i = 0; i < addresses.size(); ++i) {
    std::pair<uint64_t, uint64_t> buffer;
    if (!nb::try_cast(addresses[i], buffer)) {
      throw nb::type_error(
          ("buffers[" + std::to_string(i) + "] must be (device address, bytes)").c_str());
    }
    buffers.push_back({buffer.first, buffer.second, i + n_results >= addresses.size()});
  }
  Status status;
  {
    nb::gil_scoped_release release;
    status = cuda::Launch(holder.record, buffers, device, reinterpret_cast<void*>(stream));
  }
  RaiseIfError(status);
}

// A record that is read once and launched often.
class Launcher {
 public:
  Launcher(nb::dict attributes, int64_t n_results)
      : holder_(std::move(attributes)), n_results_(n_results) {}
  Launcher(const Launcher&) = delete;  // the record's views point into the holder

  void Launch(int device, uint64_t stream, const nb::args& values) const {
    const size_t n_buffers = values.size() / 2;
    CheckResultCount(n_buffers, n_results_);
    Buffers buffers;
    for (size_t i = 0; i < n_buffers; ++i) {
      buffers.push_back(
          {Unsigned(values[2 * i]), Unsigned(values[2 * i + 1]), i + n_results_ >= n_buffers});
    }
    Status status;
    {
      nb::gil_scoped_release release;
      status = cuda::Launch(holder_.record, buffers, device, reinterpret_cast<void*>(stream));
    }
    RaiseIfError(status);
  }

 private:
  static uint64_t Unsigned(const nb::handle value) {
    const unsigned long long result = PyLong_AsUnsignedLongLong(value.ptr());
    if (result == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    return result;
  }

  const DictRecord holder_;
  const int64_t n_results_;
};

nb::dict Registrations() {
  const auto capsule = [](XLA_FFI_Handler* handler) {
    return nb::capsule(reinterpret_cast<void*>(handler));
  };
  nb::dict cpu, cuda, platforms;
  cpu["instantiate"] = capsule(JaxPtxCpuInstantiate);
  cpu["execute"] = capsule(JaxPtxCpuExecute);
  cuda["instantiate"] = capsule(JaxPtxCudaInstantiate);
  cuda["initialize"] = capsule(JaxPtxCudaInitialize);
  cuda["execute"] = capsule(JaxPtxCudaExecute);
  platforms["cpu"] = cpu;
  platforms["CUDA"] = cuda;
  return platforms;
}

NB_MODULE(_ext, m) {
  m.doc() = "Launching PTX: XLA FFI handlers, the driver, and the emulator.";
  m.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);

  m.def("registrations", &Registrations,
        nb::sig("def registrations() -> dict[str, dict[str, object]]"),
        "The handlers of the FFI target, by platform and stage, for jax.ffi.register_ffi_target.");

  m.def("emulate", &EmulateArrays, nb::arg("attributes"), nb::arg("buffers"), nb::arg("n_results"),
        nb::arg("race_check") = false, nb::arg("step_limit") = 0,
        nb::sig("def emulate(attributes: dict[str, object], buffers: "
                "collections.abc.Sequence[object], n_results: int, "
                "race_check: bool = False, step_limit: int = 0) -> None"),
        R"(Runs a launch record in the emulator, on numpy arrays.

Args:
    attributes: the launch record, as Launch.attributes() gives it.
    buffers: C-contiguous arrays of any dtype, in the order of the entry's parameters. The last
        `n_results` are results and must be writable; an array that is an operand too is updated in
        place.
    n_results: how many of the buffers are results.
    race_check: report conflicting accesses to shared memory.
    step_limit: most instructions that the warps of a cluster may run; 0 for the default.

Raises:
    ValueError: the text does not parse, sizes or limits do not hold, or the kernel did something
        wrong.
    NotImplementedError: the emulator lacks an instruction.
    RuntimeError: a limit of the emulator.)");

  m.def("launch", &LaunchOnDevice, nb::arg("attributes"), nb::arg("buffers"), nb::arg("n_results"),
        nb::arg("device"), nb::arg("stream"),
        nb::sig("def launch(attributes: dict[str, object], buffers: "
                "collections.abc.Sequence[tuple[int, int]], "
                "n_results: int, device: int, stream: int) -> None"),
        R"(Enqueues a launch record on an NVIDIA GPU, and does not wait for it.

Args:
    attributes: the launch record, as Launch.attributes() gives it.
    buffers: (device address, bytes) pairs in the order of the entry's parameters.
    n_results: how many of the buffers, the last ones, are results.
    device: the device's ordinal.
    stream: a CUDA stream of that device, as an integer; 0 is the default stream.

Raises:
    ValueError: sizes or limits do not hold, or the driver refuses the text.
    RuntimeError: there is no driver, it is too old for the text, or the launch failed.)");

  nb::class_<Launcher>(m, "Launcher", "What `launch` does, for a record that is launched often.")
      .def(nb::init<nb::dict, int64_t>(), nb::arg("attributes"), nb::arg("n_results"),
           nb::sig("def __init__(self, attributes: dict[str, object], n_results: int) -> None"),
           "Reads the record, as Launch.attributes() gives it.")
      .def("__call__", &Launcher::Launch, nb::arg("device"), nb::arg("stream"),
           nb::arg("addresses_and_bytes"),
           nb::sig("def __call__(self, device: int, stream: int, *addresses_and_bytes: int) "
                   "-> None"),
           "Enqueues it: address and bytes of each buffer by turns.");
}

}  // namespace
}  // namespace jax_ptx
