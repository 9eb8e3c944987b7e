// The Python module jax_ptx._ext: handlers for jax.ffi, and direct calls for PyTorch and the tests.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <string>
#include <utility>

#include "cuda/execute.h"
#include "emulate.h"
#include "handlers.h"
#include "launch.h"
#include "launcher.h"
#include "python.h"
#include "status.h"

namespace nb = nanobind;

namespace jax_ptx {
namespace {

void EmulateArrays(nb::dict attributes, nb::sequence list, int64_t n_results, uint64_t step_limit) {
  const DictRecord holder(std::move(attributes));
  const nb::tuple arrays(list);  // keeps them, whatever other threads do to a list
  CheckResultCount(arrays.size(), n_results);
  Buffers buffers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    buffers.push_back(FromArray(arrays[i], i, i + n_results >= arrays.size()));
  }
  emulator::Options options;
  if (step_limit != 0) options.step_limit = step_limit;
  Status status;
  {
    nb::gil_scoped_release release;
    status = Emulate(holder.record, buffers, {}, options, ParallelForOnThreads);
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

void LoadOnDevice(nb::dict attributes, int device) {
  const DictRecord holder(std::move(attributes));
  Status status;
  {
    nb::gil_scoped_release release;
    status = cuda::Load(holder.record, device);
  }
  RaiseIfError(status);
}

uint64_t Unsigned(const nb::handle value) {
  const unsigned long long result = PyLong_AsUnsignedLongLong(value.ptr());
  if (result == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return result;
}

void EnqueueAddresses(Launcher& launcher, int device, uint64_t stream, const nb::args& values) {
  const size_t n_buffers = values.size() / 2;
  CheckResultCount(n_buffers, launcher.n_results());
  Buffers buffers;
  for (size_t i = 0; i < n_buffers; ++i) {
    buffers.push_back({Unsigned(values[2 * i]), Unsigned(values[2 * i + 1]),
                       i + launcher.n_results() >= n_buffers});
  }
  RaiseIfError(launcher.Enqueue(buffers, device, reinterpret_cast<void*>(stream)));
}

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
  nb::set_leak_warnings(false);  // launchers that are kept for the next call live as long as Python
  m.doc() = "Launching PTX: XLA FFI handlers, the driver, and the emulator.";
  m.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);

  m.def("registrations", &Registrations,
        nb::sig("def registrations() -> dict[str, dict[str, object]]"),
        "The handlers of the FFI target, by platform and stage, for jax.ffi.register_ffi_target.");

  m.def("emulate", &EmulateArrays, nb::arg("attributes"), nb::arg("buffers"), nb::arg("n_results"),
        nb::arg("step_limit") = 0,
        nb::sig("def emulate(attributes: dict[str, object], buffers: "
                "collections.abc.Sequence[object], n_results: int, "
                "step_limit: int = 0) -> None"),
        R"(Runs a launch record in the emulator, on numpy arrays.

Args:
    attributes: the launch record, as Launch.attributes() gives it.
    buffers: C-contiguous arrays of any dtype, in the order of the entry's parameters. The last
        `n_results` are results and must be writable; an array that is an operand too is updated in
        place.
    n_results: how many of the buffers are results.
    step_limit: most instructions that the warps of a cluster may run; 0 for the default.

Raises:
    ValueError: the text does not parse, sizes or limits do not hold, or the kernel did something
        wrong.
    NotImplementedError: the emulator lacks an instruction.
    RuntimeError: a limit of the emulator.)");

  BindObserve(m);

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

  m.def(
      "load", &LoadOnDevice, nb::arg("attributes"), nb::arg("device"),
      nb::sig("def load(attributes: dict[str, object], device: int) -> None"),
      R"(Loads a launch record's kernel, which the driver compiles, so that its first launch need not.

Args:
    attributes: the launch record, as Launch.attributes() gives it.
    device: the device's ordinal.

Raises:
    ValueError: limits do not hold, or the driver refuses the text.
    RuntimeError: there is no driver, or it is too old for the text.)");

  nb::class_<Launcher>(m, "Launcher", "What `launch` does, for a record that is launched often.")
      .def(nb::init<nb::dict, int64_t>(), nb::arg("attributes"), nb::arg("n_results"),
           nb::sig("def __init__(self, attributes: dict[str, object], n_results: int) -> None"),
           "Reads the record, as Launch.attributes() gives it.")
      .def("__call__", &EnqueueAddresses, nb::arg("device"), nb::arg("stream"),
           nb::arg("addresses_and_bytes"),
           nb::sig("def __call__(self, device: int, stream: int, *addresses_and_bytes: int) "
                   "-> None"),
           "Enqueues it: address and bytes of each buffer by turns.");
  BindTensors(m);
  BindKnownCalls(m);
}

}  // namespace
}  // namespace jax_ptx
