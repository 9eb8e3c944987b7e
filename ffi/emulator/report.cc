#include "emulator/report.h"

#include <map>

#include "emulator/compile.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Space;

std::string Triple(const Dim3& id) {
  return "(" + std::to_string(id[0]) + "," + std::to_string(id[1]) + "," + std::to_string(id[2]) +
         ")";
}

Dim3 ThreadId(const Warp& w, int lane) {
  const Dim3& block = w.cta->cluster->launch->geometry.block;
  int64_t linear = int64_t{w.index} * kLanes + lane;
  return {linear % block[0], linear / block[0] % block[1], linear / block[0] / block[1]};
}

std::string Kernel(const Cluster& cluster) {
  return "emulator: kernel `" + std::string(cluster.launch->program->entry->name) + "`";
}

void Record(Cluster& cluster, Code code, std::string message) {
  if (!cluster.fault.set()) cluster.fault = {code, std::move(message)};
}

const Region* RegionAt(const Launch& launch, uint64_t address) {
  uint64_t slot = address >> kSlotBits;
  if (slot - kFirstTensorSlot < launch.tensors.size())
    return &launch.tensors[slot - kFirstTensorSlot];
  if (slot - kFirstVariableSlot < launch.variables.size())
    return &launch.variables[slot - kFirstVariableSlot];
  return nullptr;
}

std::string Bytes(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

// "byte offset 4096 of parameter 1 (`y`, 4096 bytes)", for messages about one address.
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

// Linear thread numbers of a mask, as ranges: 0-15, 40.
struct Ranges {
  std::string text;
  int64_t first = -1, last = -1;
  size_t count = 0;
  void Add(int64_t thread) {
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

}  // namespace

std::string Hex(uint64_t value) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

std::string Place(const Step& step) {
  std::string text;
  for (char c : step.source->text.substr(0, 120)) {  // one line, single spaces
    bool is_blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!is_blank)
      text += c;
    else if (!text.empty() && text.back() != ' ')
      text += ' ';
  }
  return "PTX line " + std::to_string(step.source->line) + " `" + text + "`";
}

void Report(Warp& w, const Step& step, int lane, const std::string& what) {
  Record(*w.cta->cluster, Code::kInvalidArgument,
         Kernel(*w.cta->cluster) + ", " + Place(step) + ", CTA " + Triple(w.cta->id) + ", thread " +
             Triple(ThreadId(w, lane)) + ": " + what);
}

void ReportOutside(Warp& w, const Step& step, int lane, Space space, uint64_t address,
                   uint32_t bytes, Access access) {
  const Launch& launch = *w.cta->cluster->launch;
  std::string what = (access == Access::kWrite ? "write of " : "read of ") + Bytes(bytes);
  if (IsShared(space, address)) {
    uint64_t rank = address >> kSharedRankShift & 0xFF;
    if (rank > w.cta->cluster->ctas.size()) {
      return Report(w, step, lane,
                    what + " in the shared memory of CTA " + std::to_string(rank - 1) +
                        " of the cluster, which has " +
                        std::to_string(w.cta->cluster->ctas.size()) + " CTA(s)");
    }
    uint64_t offset = address & ((1u << kSharedRankShift) - 1);
    std::string beyond = space == Space::kShared && address >> 32 != 0
                             ? ""
                             : ", " + Bytes(offset + bytes - launch.shared_bytes) + " past its end";
    return Report(w, step, lane,
                  what + " at shared address " + Hex(address & 0xFFFFFFFFFF) +
                      ", outside the CTA's " + Bytes(launch.shared_bytes) + " of shared memory" +
                      beyond);
  }
  if (IsLocal(space, address)) {
    return Report(w, step, lane,
                  what + " at local address " + Hex(address & ((uint64_t{1} << kSlotBits) - 1)) +
                      ", outside the thread's " + Bytes(launch.program->local_bytes) +
                      " of local memory");
  }
  const Region* region = RegionAt(launch, address);
  if (region == nullptr) {
    return Report(w, step, lane,
                  what + " at address " + Hex(address) +
                      ", which belongs to no operand, result or variable of the kernel");
  }
  std::string where = address < region->begin
                          ? Bytes(region->begin - address) + " before its beginning"
                          : Bytes(address + bytes - region->end) + " past its end";
  Report(w, step, lane, what + " at " + Offset(*region, address) + ": " + where);
}

void ReportMisaligned(Warp& w, const Step& step, int lane, Space space, uint64_t address,
                      uint32_t bytes) {
  const Region* region = RegionAt(*w.cta->cluster->launch, address);
  bool is_tensor = region != nullptr && !IsShared(space, address) && !IsLocal(space, address);
  std::string place = is_tensor ? Offset(*region, address) : "address " + Hex(address);
  if (is_tensor && (region->begin & (bytes - 1)) != 0) {
    place +=
        ", which itself begins " + Bytes(region->begin & (bytes - 1)) + " behind such a multiple";
  }
  Report(w, step, lane,
         "misaligned access: " + place + ", is not at a multiple of the access's " + Bytes(bytes));
}

void ReportReadOnly(Warp& w, const Step& step, int lane, Space, uint64_t address) {
  const Region* region = RegionAt(*w.cta->cluster->launch, address);
  Report(w, step, lane,
         "write at " + Offset(*region, address) +
             ", which is an operand or constant and may only be read");
}

void ReportUnwritten(Warp& w, const Step& step, int lane, uint32_t number) {
  std::string name(w.cta->cluster->launch->program->names[number]);
  Report(w, step, lane, "reads register " + name + ", which this thread has never written");
}

void ReportStepLimit(Warp& w, uint64_t limit) {
  const Step& step = w.cta->cluster->launch->program->steps[w.active != 0 ? w.pc : w.lane_pc[0]];
  int lane = w.active != 0 ? __builtin_ctz(w.active) : 0;
  Report(w, step, lane,
         "the step limit is used up: the cluster has run " + std::to_string(limit) +
             " warp instructions without ending; an endless loop, or a limit that is too small");
}

void ReportDeadlock(Cluster& cluster) {
  const Program& program = *cluster.launch->program;
  std::string text = Kernel(cluster) + ": deadlock, no thread can go on:";
  size_t lines = 0;
  for (const Cta& cta : cluster.ctas) {
    std::map<uint32_t, Ranges> waiting;
    Ranges exited;
    for (const Warp& w : cta.warps) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if ((w.existing >> lane & 1) == 0) continue;
        int64_t thread = int64_t{w.index} * kLanes + lane;
        bool is_live = w.live >> lane & 1;
        (is_live ? waiting[w.lane_pc[lane]] : exited).Add(thread);
      }
    }
    if (waiting.empty()) continue;
    if (++lines > 8) {
      text += "\n  …";
      break;
    }
    text += "\n  CTA " + Triple(cta.id) + ":";
    const char* separator = " ";
    for (auto& [pc, threads] : waiting) {
      threads.Flush();
      text += separator + ("threads " + threads.text) + " wait at " + Place(program.steps[pc]);
      separator = "; ";
    }
    exited.Flush();
    if (!exited.text.empty()) text += separator + ("threads " + exited.text) + " have exited";
  }
  text += "\n  A barrier must be reached by every thread that it counts.";
  Record(cluster, Code::kInvalidArgument, std::move(text));
}

}  // namespace jax_ptx::emulator
