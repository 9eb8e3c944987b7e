#include "emulator/report.h"

#include <algorithm>
#include <map>

#include "emulator/async.h"
#include "emulator/compile.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Space;

const Region* RegionAt(const Launch& launch, uint64_t address) {
  uint64_t slot = address >> kSlotBits;
  if (slot - kFirstTensorSlot < launch.tensors.size())
    return &launch.tensors[slot - kFirstTensorSlot];
  if (slot - kFirstVariableSlot < launch.variables.size())
    return &launch.variables[slot - kFirstVariableSlot];
  return nullptr;
}

// "byte offset 4096 of parameter 1 (`y`) with 4096 bytes", for messages about one address.
std::string Offset(const Region& region, uint64_t address) {
  return "byte offset " + std::to_string(static_cast<int64_t>(address - region.begin)) + " of " +
         region.name + " with " + Bytes(region.end - region.begin);
}

bool IsShared(Space space, uint64_t address) {
  return space == Space::kShared || (space == Space::kNone && address >> kSlotBits == kSharedSlot);
}
bool IsLocal(Space space, uint64_t address) {
  return space == Space::kLocal || space == Space::kParam ||
         (space == Space::kNone && address >> kSlotBits == kLocalSlot);
}

Finding With(Finding finding, const Meaning& meaning) {
  finding.memory = meaning.memory;
  finding.offset = meaning.offset;
  return finding;
}

void Record(Cluster& cluster, Finding finding) {
  if (!cluster.fault.set()) cluster.fault = std::move(finding);
}

// Linear thread numbers of a mask, as ranges: 0-15, 40.
struct Ranges {
  std::string text;
  int64_t first = -1, last = -1, lowest = -1;
  size_t count = 0;
  void Add(int64_t thread) {
    if (lowest < 0) lowest = thread;
    if (first >= 0 && thread == last + 1) {
      last = thread;
      return;
    }
    Flush();
    first = last = thread;
  }
  void Flush() {
    constexpr size_t kMost = 16;
    if (first < 0) return;
    if (++count <= kMost) {
      text += (text.empty() ? "" : ", ") + std::to_string(first);
      if (last > first) text += "-" + std::to_string(last);
    } else if (count == kMost + 1) {
      text += ", …";
    }
    first = -1;
  }
};

// An instruction's text on one line, with single spaces.
std::string OneLine(std::string_view written) {
  std::string text;
  for (char c : written.substr(0, 120)) {
    bool is_blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!is_blank)
      text += c;
    else if (!text.empty() && text.back() != ' ')
      text += ' ';
  }
  return text;
}

}  // namespace

std::string Hex(uint64_t value) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

const char* Name(Kind kind) {
  static constexpr const char* kNames[] = {
      "invalid",          "out_of_bounds", "misaligned",  "read_only",     "uninitialised",
      "unwritten_output", "barrier",       "deadlock",    "waits_for_cta", "exited_peer",
      "inactive_lane",    "race",          "foreign_row", "stopped",       "step_limit"};
  return kNames[static_cast<int>(kind)];
}

std::string Kernel(const Launch& launch) {
  return "emulator: kernel `" + std::string(launch.program->entry->name) + "`";
}

std::string Bytes(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

std::string Triple(const Dim3& id) {
  return "(" + std::to_string(id[0]) + "," + std::to_string(id[1]) + "," + std::to_string(id[2]) +
         ")";
}

Dim3 ThreadId(const Launch& launch, uint32_t thread) {
  const Dim3& block = launch.geometry.block;
  int64_t linear = thread;
  return {linear % block[0], linear / block[0] % block[1], linear / block[0] / block[1]};
}

Dim3 CtaId(const Launch& launch, int64_t cluster, uint32_t rank) {
  const Dim3& size = launch.geometry.cluster;
  const auto& clusters = launch.clusters;
  int64_t x = cluster % clusters[0], rest = cluster / clusters[0], linear = rank;
  int64_t y = rest % clusters[1], z = rest / clusters[1];
  return {x * size[0] + linear % size[0], y * size[1] + linear / size[0] % size[1],
          z * size[2] + linear / size[0] / size[1]};
}

Site SiteOf(const Launch& launch, const Step& step, const Dim3& cta, uint32_t thread) {
  return {step.source->line, OneLine(step.source->text), cta, ThreadId(launch, thread)};
}

std::string Text(const Site& site) {
  return "PTX line " + std::to_string(site.line) + " `" + site.instruction + "`, CTA " +
         Triple(site.cta) + ", thread " + Triple(site.thread);
}

std::string Place(const Step& step) {
  return "PTX line " + std::to_string(step.source->line) + " `" + OneLine(step.source->text) + "`";
}

Meaning MeaningOf(const Warp& w, Space space, uint64_t address) {
  const Launch& launch = *w.cta->cluster->launch;
  Meaning meaning;
  if (IsShared(space, address)) {
    uint64_t rank = address >> kSharedRankShift & 0xFF;
    uint64_t offset = address & ((1u << kSharedRankShift) - 1);
    meaning.memory = "shared memory";
    meaning.offset = static_cast<int64_t>(offset);
    for (const SharedVariable& variable : launch.program->shared_variables) {
      uint64_t end = variable.bytes == 0 ? launch.shared_bytes : variable.begin + variable.bytes;
      if (offset < variable.begin || offset >= end) continue;
      meaning.memory = "`" + std::string(variable.name) + "` in shared memory";
      meaning.offset -= variable.begin;
    }
    meaning.text = "byte offset " + std::to_string(meaning.offset) + " of " + meaning.memory;
    if (rank != 0) meaning.text += " of CTA " + std::to_string(rank - 1) + " of the cluster";
  } else if (IsLocal(space, address)) {
    meaning.memory = "local memory";
    meaning.offset = static_cast<int64_t>(address & ((uint64_t{1} << kSlotBits) - 1));
    meaning.text = "byte offset " + std::to_string(meaning.offset) + " of local memory";
  } else if (const Region* region = RegionAt(launch, address)) {
    meaning.memory = region->name;
    meaning.offset = static_cast<int64_t>(address - region->begin);
    meaning.text = Offset(*region, address);
  }
  return meaning;
}

Finding MakeFinding(const Warp& w, const Step& step, int lane, Kind kind, const std::string& what) {
  const Launch& launch = *w.cta->cluster->launch;
  Finding finding;
  finding.code = Code::kInvalidArgument;
  finding.kind = kind;
  finding.site = SiteOf(launch, step, w.cta->id, w.index * kLanes + static_cast<uint32_t>(lane));
  finding.message = Kernel(launch) + ", " + Text(finding.site) + ": " + what;
  return finding;
}

void Report(Warp& w, const Step& step, int lane, const std::string& what, Kind kind) {
  Record(*w.cta->cluster, MakeFinding(w, step, lane, kind, what));
}

void ReportOutside(Warp& w, const Step& step, int lane, Space space, uint64_t address,
                   uint32_t bytes, Access access) {
  const Launch& launch = *w.cta->cluster->launch;
  std::string what = (access == Access::kMbarrier ? "mbarrier operation on "
                      : IsWrite(access)           ? "write of "
                                                  : "read of ") +
                     Bytes(bytes);
  const Region* region = nullptr;
  if (IsShared(space, address)) {
    uint64_t rank = address >> kSharedRankShift & 0xFF;
    uint64_t offset = address & ((1u << kSharedRankShift) - 1);
    size_t ctas = w.cta->cluster->ctas.size();
    if (rank > ctas) {
      what += " in the shared memory of CTA " + std::to_string(rank - 1) +
              " of the cluster, which has " + std::to_string(ctas) + " CTA(s)";
    } else {
      what += " at shared address " + Hex(address & 0xFFFFFFFFFF) + ", outside the CTA's " +
              Bytes(launch.shared_bytes) + " of shared memory";
      if (space != Space::kShared || address >> 32 == 0)
        what += ", " + Bytes(offset + bytes - launch.shared_bytes) + " past its end";
      const auto& variables = launch.program->shared_variables;
      bool lacks_dynamic = launch.geometry.smem_bytes == 0 &&
                           std::any_of(variables.begin(), variables.end(),
                                       [](const auto& variable) { return variable.bytes == 0; });
      if (lacks_dynamic)
        what += "; the launch gave no dynamic shared memory (smem_bytes, or --smem of the command)";
    }
  } else if (IsLocal(space, address)) {
    what += " at local address " + Hex(address & ((uint64_t{1} << kSlotBits) - 1)) +
            ", outside the thread's " + Bytes(launch.program->local_bytes) + " of local memory";
  } else if ((region = RegionAt(launch, address)) != nullptr) {
    what += " at " + Offset(*region, address) + ": " +
            (address < region->begin ? Bytes(region->begin - address) + " before its beginning"
                                     : Bytes(address + bytes - region->end) + " past its end");
  } else {
    what += " at address " + Hex(address) +
            ", which belongs to no operand, result or variable of the kernel";
  }
  Record(*w.cta->cluster,
         With(MakeFinding(w, step, lane, Kind::kOutOfBounds, what), MeaningOf(w, space, address)));
}

void ReportMisaligned(Warp& w, const Step& step, int lane, Space space, uint64_t address,
                      uint32_t bytes) {
  const Region* region = RegionAt(*w.cta->cluster->launch, address);
  bool is_tensor = region != nullptr && !IsShared(space, address) && !IsLocal(space, address);
  std::string place = MeaningOf(w, space, address).text;
  if (place.empty()) place = "address " + Hex(address);
  if (is_tensor && (region->begin & (bytes - 1)) != 0) {
    place +=
        ", which itself begins " + Bytes(region->begin & (bytes - 1)) + " behind such a multiple,";
  }
  std::string what =
      "misaligned access: " + place + " is not at a multiple of the access's " + Bytes(bytes);
  Record(*w.cta->cluster,
         With(MakeFinding(w, step, lane, Kind::kMisaligned, what), MeaningOf(w, space, address)));
}

void ReportReadOnly(Warp& w, const Step& step, int lane, Space space, uint64_t address) {
  Meaning meaning = MeaningOf(w, space, address);
  std::string what =
      "write at " + meaning.text + ", which is an operand or constant and may only be read";
  Record(*w.cta->cluster, With(MakeFinding(w, step, lane, Kind::kReadOnly, what), meaning));
}

void ReportStepLimit(Warp& w, uint64_t limit) {
  const Step& step = w.cta->cluster->launch->program->steps[w.active != 0 ? w.pc : w.lane_pc[0]];
  int lane = w.active != 0 ? __builtin_ctz(w.active) : 0;
  Report(w, step, lane,
         "the step limit is used up: the cluster has run " + std::to_string(limit) +
             " warp instructions without ending; an endless loop, or a limit that is too small",
         Kind::kStepLimit);
}

void ReportInterrupt(Cluster& cluster) {
  Finding finding;
  finding.code = Code::kFailedPrecondition;
  finding.kind = Kind::kStopped;
  finding.message = Kernel(*cluster.launch) + ": interrupted";
  Record(cluster, std::move(finding));
}

void ReportDeadlock(Cluster& cluster, const std::vector<Spin>& spins) {
  constexpr size_t kMostMbarriers = 4;
  const Program& program = *cluster.launch->program;
  Finding finding;
  finding.code = Code::kInvalidArgument;
  finding.kind = Kind::kBarrier;
  std::string text;
  std::vector<std::string> mbarriers;  // what is said of those that somebody waits for
  size_t lines = 0;
  for (const Cta& cta : cluster.ctas) {
    std::map<std::pair<bool, uint32_t>, Ranges> waiting;  // by whether they spin, and their pc
    Ranges exited;
    for (const Warp& w : cta.warps) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if ((w.existing >> lane & 1) == 0) continue;
        int64_t thread = int64_t{w.index} * kLanes + lane;
        if ((w.live >> lane & 1) == 0) {
          exited.Add(thread);
          continue;
        }
        std::pair<bool, uint32_t> where{false, w.lane_pc[lane]};
        for (const Spin& spin : spins) {
          if (spin.warp == &w && (spin.lanes >> lane & 1) != 0) where = {true, spin.pc};
        }
        waiting[where].Add(thread);
        const Step& step = program.steps[where.second];
        if (step.source->op != ptx::Op::kMbarrierWait || mbarriers.size() == kMostMbarriers)
          continue;
        std::string state = DescribeMbarrier(w, step, lane);
        bool is_known = std::find(mbarriers.begin(), mbarriers.end(), state) != mbarriers.end();
        if (!is_known && !state.empty()) mbarriers.push_back(std::move(state));
      }
    }
    if (waiting.empty()) continue;
    for (auto& [where, threads] : waiting) {
      if (program.steps[where.second].source->op != ptx::Op::kBar) finding.kind = Kind::kDeadlock;
    }
    if (lines == 0) {
      const auto& [where, threads] = *waiting.begin();
      uint32_t first = static_cast<uint32_t>(threads.lowest);
      finding.site = SiteOf(*cluster.launch, program.steps[where.second], cta.id, first);
    }
    if (++lines > 8) {
      text += "\n  …";
      break;
    }
    text += "\n  CTA " + Triple(cta.id) + ":";
    const char* separator = " ";
    for (auto& [where, threads] : waiting) {
      threads.Flush();
      text += separator + ("threads " + threads.text) + (where.first ? " spin at " : " wait at ") +
              Place(program.steps[where.second]);
      separator = "; ";
    }
    exited.Flush();
    if (!exited.text.empty()) text += separator + ("threads " + exited.text) + " have exited";
  }
  bool is_global = std::any_of(spins.begin(), spins.end(), [&](const Spin& spin) {
    const ptx::Instruction& look = *program.steps[spin.pc].source;
    return look.op == ptx::Op::kLd && (look.space == Space::kGlobal || look.space == Space::kNone);
  });
  if (is_global && cluster.later != 0) {
    finding.kind = Kind::kWaitsForCta;
    text +=
        "\n  Who spins reads what no thread of these CTAs is left to change. The emulator runs " +
        std::string(cluster.ctas.size() == 1 ? "CTAs" : "clusters") + " one after the other, and " +
        std::to_string(cluster.later) +
        " have not begun: a kernel whose CTAs wait for later ones cannot be run here.";
  } else if (!mbarriers.empty()) {
    for (const std::string& state : mbarriers) text += "\n  " + state;
  } else {
    text += spins.empty() ? "\n  A barrier must be reached by every thread that it counts."
                          : "\n  Who spins reads what no thread is left to change.";
  }
  bool is_deadlock = finding.kind != Kind::kWaitsForCta;
  finding.message = Kernel(*cluster.launch) +
                    (is_deadlock ? ": deadlock, no thread can go on:" : ": no thread can go on:") +
                    text;
  Record(cluster, std::move(finding));
}

}  // namespace jax_ptx::emulator
