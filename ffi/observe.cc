// Python's way to an observed run of the emulator.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "emulate.h"
#include "python.h"

namespace nb = nanobind;

namespace jax_ptx {
namespace {

using emulator::Observation;
using emulator::Schedule;
using emulator::Site;

nb::object ToPython(const Site& site) {
  if (site.line == 0) return nb::none();
  return nb::make_tuple(site.line, site.instruction, nb::tuple(nb::cast(site.cta)),
                        nb::tuple(nb::cast(site.thread)));
}

nb::dict ToPython(const Observation& observation) {
  nb::list findings, instructions, trace;
  for (const auto& finding : observation.findings) {
    findings.append(nb::make_tuple(emulator::Name(finding.kind), finding.message,
                                   ToPython(finding.site), ToPython(finding.other), finding.memory,
                                   finding.offset, finding.count));
  }
  for (const auto& i : observation.instructions) {
    instructions.append(nb::make_tuple(i.line, i.text, i.warps, i.threads, i.sectors,
                                       i.least_sectors, i.conflicts));
  }
  for (const auto& entry : observation.trace) {
    trace.append(nb::make_tuple(nb::tuple(nb::cast(entry.cta)), entry.warp, entry.lanes, entry.line,
                                entry.text));
  }
  nb::dict bytes, result;
  constexpr const char* kMemory[] = {"global", "const", "shared", "local"};
  constexpr const char* kDirection[] = {"read", "write", "atomic"};
  for (int memory = 0; memory < emulator::kMemories; ++memory) {
    for (int direction = 0; direction < emulator::kDirections; ++direction) {
      uint64_t count = observation.bytes[memory][direction];
      if (count == 0) continue;
      bytes[nb::make_tuple(kMemory[memory], kDirection[direction])] = count;
    }
  }
  result["grid"] = nb::tuple(nb::cast(observation.grid));
  result["findings"] = findings;
  result["instructions"] = instructions;
  result["bytes"] = bytes;
  result["trace"] = trace;
  return result;
}

Schedule ToSchedule(const std::string& name) {
  if (name == "round_robin") return Schedule::kRoundRobin;
  if (name == "shuffled") return Schedule::kShuffled;
  if (name == "adversarial") return Schedule::kAdversarial;
  throw nb::value_error(
      ("schedule must be 'round_robin', 'shuffled' or 'adversarial', got '" + name + "'").c_str());
}

nb::dict Observe(nb::dict attributes, nb::sequence list, const std::string& roles, nb::dict scalars,
                 nb::dict settings) {
  const DictRecord holder(std::move(attributes));
  const nb::tuple arrays(list);
  if (roles.size() != arrays.size()) throw nb::value_error("roles: one letter for each buffer");
  Buffers buffers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    Buffer buffer = FromArray(arrays[i], i, roles[i] != 'i');
    buffer.is_aliased = roles[i] == 'b';
    buffers.push_back(buffer);
  }
  std::vector<emulator::Scalar> given;
  for (const auto [position, value] : scalars) {
    const auto bytes = nb::cast<nb::bytes>(value);
    const auto* first = static_cast<const uint8_t*>(bytes.data());
    given.push_back({nb::cast<size_t>(position), {first, first + bytes.size()}});
  }
  Observation observation;
  observation.race_check = nb::cast<bool>(settings["race_check"]);
  observation.trace_limit = nb::cast<uint64_t>(settings["trace_limit"]);
  observation.own_row_bytes = nb::cast<std::vector<uint64_t>>(settings["own_row_bytes"]);
  emulator::Options options;
  options.observation = &observation;
  options.turns = {ToSchedule(nb::cast<std::string>(settings["schedule"])),
                   nb::cast<uint64_t>(settings["seed"]),
                   [since = uint64_t{0}](uint64_t steps) mutable {
                     constexpr uint64_t kPatience = 1 << 18;  // steps: some hundredths of a second
                     since += steps + 64;                     // CTAs that do little take time too
                     if (since < kPatience) return false;
                     since = 0;
                     nb::gil_scoped_acquire acquire;
                     return PyErr_CheckSignals() != 0;
                   }};
  if (const auto limit = nb::cast<uint64_t>(settings["step_limit"])) options.step_limit = limit;
  Status status;
  {
    nb::gil_scoped_release release;
    status = Emulate(holder.record, buffers, given, options, ParallelForOnThreads);
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // Ctrl-C, say
  if (!observation.has_fault) RaiseIfError(status);
  return ToPython(observation);
}

}  // namespace

void BindObserve(nb::module_& m) {
  m.def(
      "warp_bytes",
      [](nb::dict attributes) {
        const DictRecord holder(std::move(attributes));
        auto bytes = WarpBytes(holder.record);
        RaiseIfError(bytes.status());
        return *bytes;
      },
      nb::arg("attributes"), nb::sig("def warp_bytes(attributes: dict[str, object]) -> int"),
      "The memory that the emulator takes for a resident warp, in bytes.");

  m.def(
      "observe", &Observe, nb::arg("attributes"), nb::arg("buffers"), nb::arg("roles"),
      nb::arg("scalars"), nb::arg("settings"),
      nb::sig("def observe(attributes: dict[str, object], buffers: "
              "collections.abc.Sequence[object], roles: str, scalars: dict[int, bytes], "
              "settings: dict[str, object]) -> dict[str, typing.Any]"),
      R"(Runs a launch record in the emulator, on numpy arrays, and says what it saw (jax_ptx/emulate.py).

Args:
    attributes: the launch record, as Launch.attributes() gives it.
    buffers: C-contiguous arrays of any dtype, in the order of the entry's parameters.
    roles: a letter for each buffer: i for an operand, o for a result, b for both.
    scalars: by their positions, the bytes of the parameters that are no tensors.
    settings: race_check, trace_limit, own_row_bytes, schedule, seed and step_limit.

Returns:
    grid, findings, instructions, bytes and trace, as tuples in the order of ffi/emulator/finding.h.

Raises:
    ValueError: the text does not parse, or sizes or limits do not hold.
    NotImplementedError: the emulator lacks an instruction.
    RuntimeError: a limit of the emulator.)");
}

}  // namespace jax_ptx
