// Which lanes of a warp run next: per-lane program counters, always the smallest first, so that
// lanes which parted meet again as early as they can.
#pragma once

#include <functional>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Writes the active lanes' program counters down.
void SavePcs(Warp& warp);

// Chooses the lanes at the smallest pc among those that can run. False: none can.
bool Regroup(Warp& warp);

// Gives the lanes at the largest pc a turn: a loop at a smaller pc may wait for them.
void Rotate(Warp& warp);

// Blocks `mask`, a part of the active lanes, at the instruction; the other active lanes go on
// behind it.
void Block(Warp& warp, uint32_t mask);

// Frees lanes that were blocked; they go on behind the instruction they waited at.
void Release(Warp& warp, uint32_t mask);

// For .sync instructions, whose member mask is args[arg]: kNext when all members that still live
// have come here and may run it together; what the handler has to return otherwise.
Outcome Gather(Warp& warp, const Step& step, uint32_t mask, uint32_t arg);
Outcome GatherAll(Warp& warp, uint32_t members, uint32_t mask);

// When nothing of the warp can run: lets waiting lanes look again if lanes have exited since.
bool RetrySync(Warp& warp);

// Whose turn it is. A correct kernel gives the same results whatever it is; one that lacks a
// barrier mostly does not.
enum class Schedule : uint8_t {
  kRoundRobin,   // one warp after the other, each until it blocks
  kShuffled,     // a random warp for a few instructions, then another
  kAdversarial,  // always the warp that comes first in a fixed order: the last one, or by the seed
};
struct Turns {
  Schedule schedule = Schedule::kRoundRobin;
  uint64_t seed = 0;
  // Called now and then, with the warp instructions run since: whether the caller wants no more.
  std::function<bool(uint64_t)> is_interrupted;
};

// Runs all warps of a cluster to their end, or records a fault. `is_alone`: no other cluster runs
// at the same time.
void RunCluster(Cluster& cluster, const Turns& turns, uint64_t step_limit, bool is_alone);

}  // namespace jax_ptx::emulator
