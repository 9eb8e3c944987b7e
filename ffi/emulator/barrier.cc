#include "emulator/barrier.h"

#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/monitor.h"
#include "emulator/order.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

// Barriers count in warps: a last, partly filled warp counts as a whole one when all its threads
// have come.
uint32_t Threads(const Warp& w, uint32_t lanes) {
  return lanes == w.existing ? kLanes : static_cast<uint32_t>(__builtin_popcount(lanes));
}

// Everyone goes on; bar.red hands out its result.
void Complete(Cta& cta, Barrier& barrier) {
  const Program& program = *cta.cluster->launch->program;
  Order* order = cta.cluster->order;
  if (order != nullptr) order->Complete(&barrier);
  for (Warp& w : cta.warps) {
    uint32_t lanes = barrier.waiting[w.index];
    if (order != nullptr) order->Acquire(&barrier, w, lanes);
    for (uint32_t rest = barrier.is_red ? lanes : 0; rest != 0; rest &= rest - 1) {
      int lane = __builtin_ctz(rest);
      const Step& step = program.steps[w.lane_pc[lane]];
      const Instruction& i = *step.source;
      if (!i.Has(Mod::kRed)) continue;
      if (i.Has(Mod::kPopc)) {
        w.Out<uint32_t>(step.args[0])[lane] = barrier.true_count;
      } else {
        bool value = i.Has(Mod::kAnd) ? barrier.all_true : barrier.true_count != 0;
        w.SetPredicate(step.args[0], 1u << lane, value ? kAllLanes : 0);
      }
      if (step.write_count != 0) w.defined[step.writes[0]] |= 1u << lane;
    }
    barrier.waiting[w.index] = 0;
    if (lanes != 0) Release(w, lanes);
  }
  barrier.expected = barrier.arrived = barrier.true_count = 0;
  barrier.all_true = true;
  barrier.is_red = false;
}

// bar.sync a{, b}; bar.arrive a, b; bar.red d, a{, b}, p.
Outcome Bar(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool is_red = i.Has(Mod::kRed), is_arrive = i.Has(Mod::kArrive);
  const uint32_t* args = s.args + i.destination_count;
  int sources = i.operand_count - i.destination_count - (is_red ? 1 : 0);
  int first = __builtin_ctz(mask);
  const auto* ids = w.In<uint32_t>(args[0]);
  auto whole_cta = static_cast<uint32_t>(w.cta->warps.size() * kLanes);
  uint32_t id = ids[first], expected = whole_cta;
  if (sources == 2) expected = w.In<uint32_t>(args[1])[first];
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (ids[lane] == id && (sources < 2 || w.In<uint32_t>(args[1])[lane] == expected)) continue;
    Report(w, s, lane, "the threads of a warp name different barriers or thread counts",
           Kind::kBarrier);
    return Outcome::kFault;
  }
  if (id >= kBarriers) {
    Report(w, s, first,
           "barrier " + std::to_string(id) + " does not exist: there are 16, from 0 to 15",
           Kind::kBarrier);
    return Outcome::kFault;
  }
  if (expected == 0 || expected % kLanes != 0 || expected > whole_cta) {
    Report(w, s, first,
           "the barrier waits for " + std::to_string(expected) +
               " threads; a count must be a multiple of 32, and the CTA has " +
               std::to_string(w.cta->cluster->launch->threads) + " threads",
           Kind::kBarrier);
    return Outcome::kFault;
  }
  Barrier& barrier = w.cta->barriers[id];
  const Program& program = *w.cta->cluster->launch->program;
  if (barrier.expected != 0 && barrier.expected != expected) {
    Report(w, s, first,
           "barrier " + std::to_string(id) + " waits for " + std::to_string(expected) +
               " threads here and for " + std::to_string(barrier.expected) + " at " +
               Place(program.steps[barrier.first_pc]),
           Kind::kBarrier);
    return Outcome::kFault;
  }
  bool is_aligned = i.text.substr(0, 4) == "bar." || i.Has(Mod::kAligned);
  for (uint32_t rest = barrier.waiting[w.index]; is_aligned && rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (w.lane_pc[lane] == w.pc) continue;
    Report(w, s, first,
           "all threads of a warp must reach the same barrier instruction, but thread(s) of this "
           "warp wait at " +
               Place(program.steps[w.lane_pc[lane]]) + "; barrier.sync without .aligned allows it",
           Kind::kBarrier);
    return Outcome::kFault;
  }
  if (barrier.expected == 0) {
    barrier.expected = expected;
    barrier.first_pc = w.pc;
  }
  if (is_red) {
    uint32_t holds = w.Predicate(args[sources]) & mask;
    barrier.true_count += static_cast<uint32_t>(__builtin_popcount(holds));
    barrier.all_true &= holds == mask;
    barrier.is_red = true;
  }
  if (Order* order = w.cta->cluster->order) order->Release(&barrier, w, mask);
  if (is_arrive) {
    barrier.arrived += Threads(w, mask);
  } else {
    Block(w, mask);
    barrier.waiting[w.index] |= mask;
  }
  uint32_t here = barrier.arrived;
  for (const Warp& other : w.cta->warps) here += Threads(other, barrier.waiting[other.index]);
  if (here > expected) {
    Report(w, s, first,
           "barrier " + std::to_string(id) + " waits for " + std::to_string(expected) +
               " threads, but " + std::to_string(here) + " have come",
           Kind::kBarrier);
    return Outcome::kFault;
  }
  if (here == expected) Complete(*w.cta, barrier);
  return is_arrive ? Outcome::kNext : Outcome::kRetry;
}

void CompleteCluster(Cluster& cluster) {
  cluster.arrived = 0;
  Order* order = cluster.order;
  if (order != nullptr) order->Complete(&cluster);
  for (Cta& cta : cluster.ctas) {
    for (Warp& w : cta.warps) {
      uint32_t lanes = w.cluster_wait;
      w.cluster_arrived = w.cluster_wait = 0;
      if (order != nullptr) order->Acquire(&cluster, w, lanes);
      if (lanes != 0) Release(w, lanes);
    }
  }
}

Outcome ClusterBarrier(Warp& w, const Step& s, uint32_t mask) {
  Cluster& cluster = *w.cta->cluster;
  if (s.source->Has(Mod::kArrive)) {
    uint32_t twice = w.cluster_arrived & mask;
    if (twice != 0) {
      Report(w, s, __builtin_ctz(twice),
             "the thread arrives again without barrier.cluster.wait in between", Kind::kBarrier);
      return Outcome::kFault;
    }
    if (Order* order = cluster.order)
      order->Release(&cluster, w, mask, s.source->Has(Mod::kRelaxed));
    w.cluster_arrived |= mask;
    cluster.arrived += static_cast<uint32_t>(__builtin_popcount(mask));
    if (cluster.arrived == cluster.live_threads) CompleteCluster(cluster);
    return Outcome::kNext;
  }
  uint32_t early = mask & w.cluster_arrived;
  if (Order* order = cluster.order) order->Acquire(&cluster, w, mask & ~early);
  if (early == 0) return Outcome::kNext;
  Block(w, early);
  w.cluster_wait |= early;
  return Outcome::kRetry;
}

Outcome WarpBarrier(Warp& w, const Step& s, uint32_t mask) {
  Outcome outcome = Gather(w, s, mask, 0);
  if (Order* order = w.cta->cluster->order; order != nullptr && outcome == Outcome::kNext) {
    order->Release(&w, w, mask);
    order->Complete(&w);
    order->Acquire(&w, w, mask);
  }
  return outcome;
}

Outcome Fence(Warp& w, const Step& s, uint32_t mask) {
  if (Order* order = w.cta->cluster->order) order->Fence(w, s, mask);
  return Outcome::kNext;
}

}  // namespace

void LeaveCluster(Warp& w, uint32_t lanes) {
  Cluster& cluster = *w.cta->cluster;
  auto count = static_cast<uint32_t>(__builtin_popcount(lanes));
  w.cta->live_threads -= count;
  if (cluster.monitor != nullptr && w.cta->live_threads == 0) cluster.monitor->Exited(*w.cta);
  cluster.live_threads -= count;
  cluster.arrived -= static_cast<uint32_t>(__builtin_popcount(lanes & w.cluster_arrived));
  w.cluster_arrived &= ~lanes;
  if (cluster.arrived != 0 && cluster.arrived == cluster.live_threads) CompleteCluster(cluster);
}

Handler SelectBarrier(const Instruction& i) {
  switch (i.op) {
    case Op::kBar:
      return Bar;
    case Op::kBarWarp:
      return WarpBarrier;
    case Op::kBarrierCluster:
      return ClusterBarrier;
    case Op::kFence:
      return Fence;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
