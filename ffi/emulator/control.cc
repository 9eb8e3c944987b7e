// Branches, calls, returns, exits and traps (PTX ISA 9.7.12).
#include <algorithm>
#include <cstring>

#include "emulator/barrier.h"
#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Op;

// The lanes of `mask` go to `target`, the other active ones behind the instruction.
Outcome Jump(Warp& w, uint32_t mask, uint32_t target) {
  if (mask == w.active) {
    w.pc = target;
    return Outcome::kJump;
  }
  SavePcs(w);
  for (uint32_t rest = w.active; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    w.lane_pc[lane] = mask >> lane & 1 ? target : w.pc + 1;
  }
  Regroup(w);
  return Outcome::kJump;
}

Outcome Branch(Warp& w, const Step& s, uint32_t mask) { return Jump(w, mask, s.target); }

// args: index, then the steps of the table, step.value of them.
Outcome BranchIndexed(Warp& w, const Step& s, uint32_t mask) {
  const auto* index = w.In<uint32_t>(s.args[0]);
  SavePcs(w);
  for (uint32_t rest = w.active; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    bool takes = mask >> lane & 1;
    if (takes && index[lane] >= s.value) {
      Report(w, s, lane,
             "index " + std::to_string(index[lane]) + " is past the table's " +
                 std::to_string(s.value) + " targets");
      return Outcome::kFault;
    }
    w.lane_pc[lane] = takes ? s.args[1 + index[lane]] : w.pc + 1;
  }
  w.active = 0;
  return Outcome::kRetry;
}

Outcome Exit(Warp& w, const Step&, uint32_t mask) {
  SavePcs(w);
  for (uint32_t rest = w.active & ~mask; rest != 0; rest &= rest - 1)
    ++w.lane_pc[__builtin_ctz(rest)];
  w.live &= ~mask;
  w.active = 0;
  w.is_uniform = false;
  LeaveCluster(w, mask);
  return Outcome::kRetry;
}

// In a kernel's own body (step.value is kNone) ret ends the thread; in a .func it goes to the
// lane's return step.
Outcome Return(Warp& w, const Step& s, uint32_t mask) {
  if (s.value == kNone) return Exit(w, s, mask);
  const auto* target = w.In<uint32_t>(static_cast<uint32_t>(s.value));
  SavePcs(w);
  for (uint32_t rest = w.active; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    w.lane_pc[lane] = mask >> lane & 1 ? target[lane] : w.pc + 1;
  }
  w.is_uniform = false;
  return Outcome::kRetry;
}

Outcome Trap(Warp& w, const Step& s, uint32_t mask) {
  Report(w, s, __builtin_ctz(mask), "the kernel stopped itself", Kind::kStopped);
  return Outcome::kFault;
}

// args: how many copies, then destination, source and size of each, in the thread's local memory.
void CopyParameters(Warp& w, const Step& s, uint32_t mask) {
  const uint32_t* copy = s.args + 1;
  size_t stride = w.cta->cluster->launch->program->local_bytes;
  for (uint32_t k = 0; k < s.args[0]; ++k, copy += 3) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      uint8_t* local = w.local + static_cast<size_t>(__builtin_ctz(rest)) * stride;
      std::memcpy(local + copy[0], local + copy[1], copy[2]);
    }
  }
}

}  // namespace

Outcome Call(Warp& w, const Step& s, uint32_t mask) {
  CopyParameters(w, s, mask);
  auto* target = w.Out<uint32_t>(static_cast<uint32_t>(s.value));
  ForLanes(mask, [&](int l) { target[l] = w.pc + 1; });
  return Jump(w, mask, s.target);
}

Outcome CopyResults(Warp& w, const Step& s, uint32_t mask) {
  CopyParameters(w, s, mask);
  return Outcome::kNext;
}

namespace {

// The text of a module variable at a generic address, or nothing.
std::string TextAt(const Launch& launch, uint64_t address) {
  constexpr uint64_t kMost = 200;
  uint64_t number = (address >> kSlotBits) - kFirstVariableSlot;
  if (number >= launch.variables.size()) return {};
  const Region& region = launch.variables[number];
  if (address < region.begin || address >= region.end) return {};
  const auto* text = reinterpret_cast<const char*>(region.host + (address - region.begin));
  return std::string(text, strnlen(text, std::min(kMost, region.end - address)));
}

// __assertfail(expression, file, line, function, character size): what it says, where readable.
std::string Assertion(const Warp& w, const Step& s, int lane) {
  const Launch& launch = *w.cta->cluster->launch;
  const uint32_t* arguments = s.args + 2;
  auto argument = [&](uint32_t k, size_t bytes) {
    uint64_t value = 0;
    bool is_there = k < s.args[1] && arguments[k] <= launch.program->local_bytes &&
                    launch.program->local_bytes - arguments[k] >= bytes;
    const uint8_t* local = w.local + static_cast<size_t>(lane) * launch.program->local_bytes;
    if (is_there) std::memcpy(&value, local + arguments[k], bytes);
    return value;
  };
  std::string expression = TextAt(launch, argument(0, 8)), file = TextAt(launch, argument(1, 8));
  std::string text = "an assertion of the kernel failed";
  if (!expression.empty()) text += ": `" + expression + "`";
  if (!file.empty()) text += ", " + file + ":" + std::to_string(argument(2, 4));
  return text;
}

}  // namespace

Outcome CallUndefined(Warp& w, const Step& s, uint32_t mask) {
  std::string name(w.cta->cluster->launch->program->module->functions[s.source->target].name);
  int lane = __builtin_ctz(mask);
  Report(w, s, lane,
         name == "__assertfail" ? Assertion(w, s, lane)
                                : "the kernel calls `" + name + "`, which has no body here",
         Kind::kStopped);
  return Outcome::kFault;
}

// Nothing is printed. args of both: the local address of the result, or kNone; how many arguments,
// and their local addresses.
Outcome CallPrintf(Warp& w, const Step& s, uint32_t mask) {
  if (s.args[0] == kNone) return Outcome::kNext;
  size_t stride = w.cta->cluster->launch->program->local_bytes;
  for (; mask != 0; mask &= mask - 1)
    std::memset(w.local + static_cast<size_t>(__builtin_ctz(mask)) * stride + s.args[0], 0, 4);
  return Outcome::kNext;
}

Handler SelectControl(const ptx::Instruction& i) {
  switch (i.op) {
    case Op::kBra:
      return Branch;
    case Op::kBrx:
      return BranchIndexed;
    case Op::kRet:
      return Return;
    case Op::kExit:
      return Exit;
    case Op::kTrap:
      return Trap;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
