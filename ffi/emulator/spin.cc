#include "emulator/spin.h"

#include <cstring>

#include "emulator/compile.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Op;
using ptx::Space;

constexpr int kMostSteps = 4096;  // of one group of lanes

// What decides how a warp goes on, besides memory.
struct State {
  uint32_t pc, active, blocked, live;
  std::array<uint32_t, kLanes> lane_pc;
  std::vector<uint8_t> registers;
  std::vector<uint32_t> predicates;
};

State Take(Warp& w, const Program& program) {
  SavePcs(w);
  return {w.pc,
          w.active,
          w.blocked,
          w.live,
          w.lane_pc,
          {w.registers, w.registers + program.register_bytes},
          {w.predicates, w.predicates + program.predicate_count}};
}

bool Equals(Warp& w, const State& state) {
  if (w.pc != state.pc || w.active != state.active || w.blocked != state.blocked ||
      w.live != state.live) {
    return false;
  }
  SavePcs(w);
  return w.lane_pc == state.lane_pc &&
         std::memcmp(w.predicates, state.predicates.data(), 4 * state.predicates.size()) == 0 &&
         std::memcmp(w.registers, state.registers.data(), state.registers.size()) == 0;
}

// Whether the instruction may change something that others, or it itself later, can see.
bool ChangesSomething(const ptx::Instruction& i, bool is_alone) {
  switch (i.op) {
    case Op::kLd: {
      bool is_private = i.space == Space::kShared || i.space == Space::kLocal ||
                        i.space == Space::kParam || i.space == Space::kConst;
      return !is_private && !is_alone;
    }
    case Op::kAtom:
    case Op::kRed:
    case Op::kSt:
    case Op::kStAsync:
    case Op::kStBulk:
    case Op::kRedAsync:
    case Op::kCpReduceBulk:
    case Op::kWmmaStore:
    case Op::kStmatrix:
    case Op::kBar:
    case Op::kBarrierCluster:
    case Op::kCpAsync:
    case Op::kCpAsyncBulk:
    case Op::kCpAsyncGroup:
    case Op::kCpAsyncBulkGroup:
    case Op::kCpAsyncMbarrier:
    case Op::kMbarrier:
    case Op::kMbarrierArrive:
      return true;
    default:
      return false;
  }
}

// Whether the lanes at w.pc come back to where they are, with nothing changed; then `look` is where
// they read memory.
bool ComesBack(Warp& w, StepWarp step_warp, bool is_alone, uint64_t* steps, uint32_t* look) {
  const Program& program = *w.cta->cluster->launch->program;
  State state = Take(w, program);
  *look = w.pc;
  for (int n = 1; n <= kMostSteps; ++n) {
    const ptx::Instruction& i = *program.steps[w.pc].source;
    if (ChangesSomething(i, is_alone)) return false;
    if (i.op == Op::kLd || i.op == Op::kMbarrierWait) *look = w.pc;
    step_warp(w);
    ++*steps;
    if (w.active == 0 || w.cta->cluster->fault.set()) return false;
    if (Equals(w, state)) return true;
    // The loop may begin only some steps later: look for it from ever later states.
    if ((n & (n - 1)) == 0) state = Take(w, program);
  }
  return false;
}

}  // namespace

std::vector<Spin> FindSpins(Cluster& cluster, StepWarp step_warp, bool is_alone, uint64_t* steps) {
  std::vector<Spin> spins;
  for (Cta& cta : cluster.ctas) {
    for (Warp& w : cta.warps) {
      uint32_t seen = 0, runnable = w.live & ~w.blocked;
      while ((runnable & ~seen) != 0) {
        if (w.active == 0 && !Regroup(w)) return {};
        // Each turn takes the lanes at the largest pc, or then at the smallest: two groups.
        if ((w.active & ~seen) == 0) Rotate(w);
        if ((w.active & ~seen) == 0) return {};
        uint32_t look = 0;
        if (!ComesBack(w, step_warp, is_alone, steps, &look)) return {};
        spins.push_back({&w, w.active, look});
        seen |= w.active;
      }
    }
  }
  return spins;
}

}  // namespace jax_ptx::emulator
