#include "emulator/cluster.h"

#include <cstring>

#include "emulator/compile.h"
#include "emulator/layout.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Special;

uint32_t Warps(const Launch& launch) { return (launch.threads + kLanes - 1) / kLanes; }

uint64_t CtasOf(const Launch& launch) {
  const Dim3& cluster = launch.geometry.cluster;
  return static_cast<uint64_t>(cluster[0] * cluster[1] * cluster[2]);
}

uint64_t MasksOf(const Program& program) {  // predicates, and what is defined
  return program.predicate_count + program.names.size();
}

uint64_t RoundUp(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Whether threads that follow each other have other values; then every cluster has the same.
bool IsOfLane(Special special) {
  return (special >= Special::kTidX && special <= Special::kTidZ) ||
         (special >= Special::kLaneid && special <= Special::kLanemaskGt);
}

// Special registers that are the same in all lanes; `lane` decides the others.
uint64_t Value(Special special, const Warp& w, int lane) {
  const Cta& cta = *w.cta;
  const Launch& launch = *cta.cluster->launch;
  const Dim3& grid = launch.geometry.grid;
  const Dim3& block = launch.geometry.block;
  const Dim3& cluster = launch.geometry.cluster;
  int64_t thread = int64_t{w.index} * kLanes + lane;
  uint32_t bit = 1u << lane;
  auto in = [&](Special first) {
    return static_cast<size_t>(special) - static_cast<size_t>(first);
  };
  switch (special) {
    case Special::kTidX:
      return static_cast<uint64_t>(thread % block[0]);
    case Special::kTidY:
      return static_cast<uint64_t>(thread / block[0] % block[1]);
    case Special::kTidZ:
      return static_cast<uint64_t>(thread / block[0] / block[1]);
    case Special::kNtidX:
    case Special::kNtidY:
    case Special::kNtidZ:
      return static_cast<uint64_t>(block[in(Special::kNtidX)]);
    case Special::kCtaidX:
    case Special::kCtaidY:
    case Special::kCtaidZ:
      return static_cast<uint64_t>(cta.id[in(Special::kCtaidX)]);
    case Special::kNctaidX:
    case Special::kNctaidY:
    case Special::kNctaidZ:
      return static_cast<uint64_t>(grid[in(Special::kNctaidX)]);
    case Special::kClusteridX:
    case Special::kClusteridY:
    case Special::kClusteridZ: {
      size_t axis = in(Special::kClusteridX);
      return static_cast<uint64_t>(cta.id[axis] / cluster[axis]);
    }
    case Special::kNclusteridX:
    case Special::kNclusteridY:
    case Special::kNclusteridZ:
      return static_cast<uint64_t>(launch.clusters[in(Special::kNclusteridX)]);
    case Special::kClusterCtaidX:
    case Special::kClusterCtaidY:
    case Special::kClusterCtaidZ: {
      size_t axis = in(Special::kClusterCtaidX);
      return static_cast<uint64_t>(cta.id[axis] % cluster[axis]);
    }
    case Special::kClusterNctaidX:
    case Special::kClusterNctaidY:
    case Special::kClusterNctaidZ:
      return static_cast<uint64_t>(cluster[in(Special::kClusterNctaidX)]);
    case Special::kClusterCtarank:
      return cta.rank;
    case Special::kClusterNctarank:
      return CtasOf(launch);
    case Special::kIsExplicitCluster:
      return IsExplicitCluster(launch);
    case Special::kLaneid:
      return static_cast<uint64_t>(lane);
    case Special::kWarpid:
      return w.index;
    case Special::kNwarpid:
      return 32;
    case Special::kNsmid:
      return 1;
    case Special::kLanemaskEq:
      return bit;
    case Special::kLanemaskLt:
      return bit - 1;
    case Special::kLanemaskLe:
      return bit | (bit - 1);
    case Special::kLanemaskGe:
      return static_cast<uint32_t>(~(bit - 1));
    case Special::kLanemaskGt:
      return static_cast<uint32_t>(~(bit | (bit - 1)));
    case Special::kDynamicSmemSize:
      return static_cast<uint64_t>(launch.geometry.smem_bytes);
    case Special::kTotalSmemSize:
      return launch.shared_bytes - launch.program->reserved_shared_bytes;
    case Special::kAggrSmemSize:
      return launch.shared_bytes;
    case Special::kReservedSmemEnd:
    case Special::kReservedSmemCap:
      return kReservedSharedBytes;
    default:
      // smid, gridid, where the reserved shared memory begins, and envreg1 and 2, which hold a
      // pointer in a cooperative launch only; the clocks are read by steps of their own.
      return 0;
  }
}

// Those of lanes stay from cluster to cluster.
void FillSpecials(Warp& w, bool of_lanes) {
  for (const SpecialSlot& slot : w.cta->cluster->launch->program->specials) {
    if (IsOfLane(slot.special) != of_lanes) continue;
    uint64_t value = Value(slot.special, w, 0);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (of_lanes) value = Value(slot.special, w, lane);
      if (slot.is_wide) {
        w.Out<uint64_t>(slot.offset)[lane] = value;
      } else {
        w.Out<uint32_t>(slot.offset)[lane] = static_cast<uint32_t>(value);
      }
    }
  }
}

}  // namespace

bool IsExplicitCluster(const Launch& launch) {
  return CtasOf(launch) > 1 || launch.program->entry->required_ctas != 0;
}

uint64_t ClusterMemory::BytesForWarp(const Program& program) {
  return program.register_bytes + 4 * MasksOf(program) + kLanes * uint64_t{program.local_bytes};
}

uint64_t ClusterMemory::BytesFor(const Launch& launch) {
  uint64_t a_warp = BytesForWarp(*launch.program);
  return CtasOf(launch) * (Warps(launch) * a_warp + launch.shared_bytes);
}

ClusterMemory::ClusterMemory(const Launch& launch) : launch_(launch) {
  const Program& program = *launch.program;
  uint64_t ctas = CtasOf(launch), warps = Warps(launch);
  uint64_t register_words = RoundUp(program.register_bytes) / 8;
  uint64_t shared_words = RoundUp(launch.shared_bytes) / 8;
  uint64_t local_words = kLanes * uint64_t{program.local_bytes} / 8;
  registers_.resize(ctas * warps * register_words);
  shared_.resize(ctas * shared_words);
  local_.resize(ctas * warps * local_words);
  masks_.resize(ctas * warps * MasksOf(program));
  cluster_.launch = &launch;
  cluster_.ctas.resize(ctas);
  for (uint64_t c = 0; c < ctas; ++c) {
    Cta& cta = cluster_.ctas[c];
    cta.cluster = &cluster_;
    cta.rank = static_cast<uint32_t>(c);
    cta.shared = reinterpret_cast<uint8_t*>(shared_.data() + c * shared_words);
    for (Barrier& barrier : cta.barriers) barrier.waiting.resize(warps);
    cta.warps.resize(warps);
    for (uint64_t i = 0; i < warps; ++i) {
      Warp& w = cta.warps[i];
      uint64_t number = c * warps + i;
      w.cta = &cta;
      w.index = static_cast<uint32_t>(i);
      w.registers = reinterpret_cast<uint8_t*>(registers_.data() + number * register_words);
      w.bank[0] = w.registers;
      w.bank[1] = reinterpret_cast<const uint8_t*>(program.constants.data());
      w.local = reinterpret_cast<uint8_t*>(local_.data() + number * local_words);
      w.predicates = masks_.data() + number * MasksOf(program);
      w.defined = w.predicates + program.predicate_count;
      uint32_t left = launch.threads - w.index * kLanes;
      w.existing = left >= kLanes ? kAllLanes : (1u << left) - 1;
      FillSpecials(w, true);
    }
  }
}

void ClusterMemory::StartWarp(Warp& w) {
  const Program& program = *launch_.program;
  std::memset(w.predicates, 0, 4 * MasksOf(program));
  w.predicates[program.predicate_count - 1] = kAllLanes;
  w.defined[kCarryNumber] = kAllLanes;
  w.undefined.clear();
  if (program.local_bytes != 0) std::memset(w.local, 0xFF, kLanes * size_t{program.local_bytes});
  FillSpecials(w, false);
  w.pc = 0;
  w.stop = kNone;
  w.active = w.live = w.existing;
  w.is_uniform = true;
  w.blocked = w.sync_wait = w.cluster_wait = w.cluster_arrived = w.mbarrier_wait = w.carry = 0;
}

Cluster& ClusterMemory::Start(int64_t index, uint64_t step_limit) {
  if (!shared_.empty()) std::memset(shared_.data(), 0xFF, 8 * shared_.size());
  cluster_.steps_left = step_limit;
  cluster_.arrived = 0;
  cluster_.live_threads = static_cast<uint32_t>(cluster_.ctas.size()) * launch_.threads;
  cluster_.fault = Finding();
  cluster_.index = index;
  for (Cta& cta : cluster_.ctas) {
    cta.id = CtaId(launch_, index, cta.rank);
    cta.live_threads = launch_.threads;
    for (Barrier& barrier : cta.barriers) {
      barrier.expected = barrier.arrived = barrier.true_count = 0;
      barrier.all_true = true;
      barrier.is_red = false;
      barrier.waiting.assign(barrier.waiting.size(), 0);
    }
    for (Warp& w : cta.warps) StartWarp(w);
  }
  return cluster_;
}

}  // namespace jax_ptx::emulator
