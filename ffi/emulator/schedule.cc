#include "emulator/schedule.h"

#include <algorithm>

#include "emulator/barrier.h"
#include "emulator/compile.h"
#include "emulator/monitor.h"
#include "emulator/report.h"
#include "emulator/spin.h"
#include "emulator/undefined.h"

namespace jax_ptx::emulator {
namespace {

constexpr uint32_t kSlice = 1 << 13;  // steps

void Choose(Warp& w, uint32_t runnable, uint32_t pc) {
  uint32_t group = 0, next = kNone;
  for (uint32_t rest = runnable; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (w.lane_pc[lane] == pc) {
      group |= 1u << lane;
    } else if (w.lane_pc[lane] > pc) {
      next = std::min(next, w.lane_pc[lane]);
    }
  }
  w.pc = pc;
  w.active = group;
  w.stop = next;
  w.is_uniform = group == w.live;
}

}  // namespace

void SavePcs(Warp& w) {
  if (w.is_uniform) {
    w.lane_pc.fill(w.pc);
    return;
  }
  for (uint32_t rest = w.active; rest != 0; rest &= rest - 1) w.lane_pc[__builtin_ctz(rest)] = w.pc;
}

bool Regroup(Warp& w) {
  uint32_t runnable = w.live & ~w.blocked;
  w.active = 0;
  w.is_uniform = false;
  if (runnable == 0) return false;
  // Mostly all lanes stand at one place: this loop is done in a few vectors.
  uint32_t first = w.lane_pc[__builtin_ctz(runnable)], difference = 0;
  for (int lane = 0; lane < kLanes; ++lane) difference |= w.lane_pc[lane] ^ first;
  if (difference == 0) {
    w.pc = first;
    w.active = runnable;
    w.stop = kNone;
    w.is_uniform = runnable == w.live;
    return true;
  }
  uint32_t least = kNone;
  for (uint32_t rest = runnable; rest != 0; rest &= rest - 1) {
    least = std::min(least, w.lane_pc[__builtin_ctz(rest)]);
  }
  Choose(w, runnable, least);
  return true;
}

void Rotate(Warp& w) {
  if (w.is_uniform || w.active == 0) return;
  SavePcs(w);
  uint32_t runnable = w.live & ~w.blocked, largest = 0;
  for (uint32_t rest = runnable; rest != 0; rest &= rest - 1) {
    largest = std::max(largest, w.lane_pc[__builtin_ctz(rest)]);
  }
  if (w.pc == largest) {
    Regroup(w);
  } else {
    Choose(w, runnable, largest);
  }
}

void Block(Warp& w, uint32_t mask) {
  SavePcs(w);
  w.is_uniform = false;
  w.blocked |= mask;
  for (uint32_t rest = w.active & ~mask; rest != 0; rest &= rest - 1)
    ++w.lane_pc[__builtin_ctz(rest)];
  w.active = 0;
}

void Release(Warp& w, uint32_t mask) {
  w.blocked &= ~mask;
  w.stop = 0;  // a warp in the middle of its slice chooses anew which lanes run
  for (; mask != 0; mask &= mask - 1) ++w.lane_pc[__builtin_ctz(mask)];
}

Outcome GatherAll(Warp& w, uint32_t members, uint32_t mask) {
  uint32_t waiting = 0;
  for (uint32_t rest = w.sync_wait; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (w.lane_pc[lane] == w.pc) waiting |= 1u << lane;
  }
  if ((members & w.live & ~(mask | waiting)) == 0) {
    if (waiting == 0) return Outcome::kNext;
    // All are here: the instruction starts again with all of them.
    w.sync_wait &= ~waiting;
    w.blocked &= ~waiting;
    w.active |= waiting;
    return Outcome::kJump;
  }
  Block(w, mask);
  w.sync_wait |= mask;
  w.exits_seen = w.live;
  return Outcome::kRetry;
}

Outcome Gather(Warp& w, const Step& step, uint32_t mask, uint32_t arg) {
  const auto* masks = w.In<uint32_t>(step.args[arg]);
  int first = __builtin_ctz(mask);
  uint32_t members = masks[first];
  if ((members >> first & 1) == 0) {
    Report(w, step, first, "the thread is not in its own member mask " + Hex(members),
           Kind::kInactiveLane);
    return Outcome::kFault;
  }
  if ((mask & ~members) != 0) {
    // Several groups with masks of their own: the first goes now, the others stay at the
    // instruction.
    SavePcs(w);
    w.is_uniform = false;
    w.active = mask & members;
    w.stop = w.pc + 1;
    return Outcome::kJump;
  }
  if (w.is_uniform && mask == w.active) return Outcome::kNext;
  return GatherAll(w, members, mask);
}

bool RetrySync(Warp& w) {
  if (w.sync_wait == 0 || w.exits_seen == w.live) return false;
  w.exits_seen = w.live;
  uint32_t mask = w.sync_wait & w.live;
  w.blocked &= ~mask;
  w.sync_wait = 0;
  return mask != 0;
}

namespace {

// Whether the step's lanes are through, or will run it again once others have come.
bool IsThrough(const Step& step, Outcome outcome) {
  if (outcome == Outcome::kNext || outcome == Outcome::kMarked) return true;
  switch (step.source->op) {
    case ptx::Op::kBar:
    case ptx::Op::kBarrierCluster:
    case ptx::Op::kBra:
    case ptx::Op::kBrx:
    case ptx::Op::kCall:
    case ptx::Op::kExit:
    case ptx::Op::kRet:
      return outcome != Outcome::kFault;
    default:
      return false;
  }
}

// Runs the warp until it blocks, ends, fails or has used up its slice.
template <bool is_observed>
void RunWarp(Warp& w, uint32_t slice) {
  Cluster& cluster = *w.cta->cluster;
  const Step* steps = cluster.launch->program->steps.data();
  const uint32_t* defined = w.defined;
  const uint32_t first_predicate = cluster.launch->program->first_predicate;
  w.slice = slice;
  if (w.active == 0 && !Regroup(w)) return;
  for (;;) {
    if (w.pc >= w.stop) {
      SavePcs(w);
      Regroup(w);
    }
    const Step& step = steps[w.pc];
    uint32_t mask = w.active;
    if (w.slice-- == 0) {
      w.slice = 0;
      return;
    }
    if (step.guard != kNone) {
      uint32_t number = first_predicate + step.guard;
      if ((mask & ~defined[number]) != 0) return ReportUndefinedGuard(w, step, mask, number);
      uint32_t predicate = w.predicates[step.guard];
      mask &= step.guard_negated ? ~predicate : predicate;
      if (mask == 0) {
        ++w.pc;
        continue;
      }
    }
    uint32_t undefined = 0;
    for (int k = 0; k < step.read_count; ++k) undefined |= mask & ~defined[step.reads[k]];
    Outcome outcome = undefined == 0 ? step.run(w, step, mask) : RunUndefined(w, step, mask);
    if (is_observed && IsThrough(step, outcome)) cluster.monitor->Executed(w, step, mask);
    switch (outcome) {
      case Outcome::kNext:
        for (int k = 0; k < step.write_count; ++k) w.defined[step.writes[k]] |= mask;
        ++w.pc;
        break;
      case Outcome::kMarked:
        ++w.pc;
        break;
      case Outcome::kJump:
        break;
      case Outcome::kRetry:
        if (!Regroup(w)) return;
        break;
      case Outcome::kFault:
        return;
    }
  }
}

}  // namespace

namespace {

// A stream of numbers that depends on the seed and the cluster alone (SplitMix64).
class Numbers {
 public:
  Numbers(uint64_t seed, int64_t cluster)
      : state_(seed * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(cluster)) {}
  uint64_t Below(uint64_t n) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (z ^ z >> 31) % n;
  }

 private:
  uint64_t state_;
};

void Shuffle(std::vector<Warp*>& warps, Numbers& numbers) {
  for (size_t i = warps.size(); i > 1; --i) std::swap(warps[i - 1], warps[numbers.Below(i)]);
}

}  // namespace

void RunCluster(Cluster& cluster, const Turns& turns, uint64_t step_limit, bool is_alone) {
  constexpr uint32_t kMostShuffled = 64;  // steps
  Numbers numbers(turns.seed, cluster.index);
  std::vector<Warp*> warps;
  for (Cta& cta : cluster.ctas) {
    for (Warp& w : cta.warps) warps.push_back(&w);
  }
  if (turns.schedule == Schedule::kAdversarial) {
    std::reverse(warps.begin(), warps.end());
    if (turns.seed != 0) Shuffle(warps, numbers);
  }
  auto* run = cluster.monitor != nullptr ? RunWarp<true> : RunWarp<false>;
  StepWarp step = cluster.monitor != nullptr ? [](Warp& w) { RunWarp<true>(w, 1); }
                                             : [](Warp& w) { RunWarp<false>(w, 1); };
  uint64_t quiet = 0, quiet_limit = uint64_t{kSlice} * warps.size();  // steps with no wait, no end
  for (;;) {
    bool moved = false, alive = false;
    if (turns.schedule == Schedule::kShuffled) Shuffle(warps, numbers);
    for (size_t i = 0; i < warps.size(); ++i) {
      Warp& w = *warps[i];
      if (w.live == 0) continue;
      alive = true;
      if ((w.live & ~w.blocked) == 0 && !RetrySync(w)) continue;
      moved = true;
      uint32_t slice = kSlice;
      if (turns.schedule == Schedule::kShuffled)
        slice = 1 + static_cast<uint32_t>(numbers.Below(kMostShuffled));
      run(w, slice);
      if (cluster.fault.set()) return;
      uint64_t used = slice - w.slice;
      if (used >= cluster.steps_left) return ReportStepLimit(w, step_limit);
      cluster.steps_left -= used;
      if (turns.is_interrupted && turns.is_interrupted(used)) return ReportInterrupt(cluster);
      quiet = w.slice == 0 ? quiet + used : 0;
      if (w.slice == 0) {
        Rotate(w);
      } else if (turns.schedule == Schedule::kAdversarial) {
        i = ~size_t{0};  // who comes first in the order runs as soon as it can
      }
    }
    if (!alive) return;
    if (!moved) return ReportDeadlock(cluster, {});
    if (quiet < quiet_limit) continue;
    quiet = 0;
    quiet_limit *= 2;  // a long computation is to spend little on this
    uint64_t used = 0;
    std::vector<Spin> spins = FindSpins(cluster, step, is_alone, &used);
    if (cluster.fault.set()) return;
    if (!spins.empty()) return ReportDeadlock(cluster, spins);
    cluster.steps_left -= std::min(used, cluster.steps_left);
  }
}

}  // namespace jax_ptx::emulator
