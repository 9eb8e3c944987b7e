// The memory of a cluster, made once and used for one cluster after the other.
#pragma once

#include <memory>
#include <vector>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Whether the launch or the entry says how many CTAs a cluster has; a CTA of any other launch is
// one by itself.
bool IsExplicitCluster(const Launch& launch);

class ClusterMemory {
 public:
  explicit ClusterMemory(const Launch& launch);

  static uint64_t BytesForWarp(const Program& program);
  // The bytes that one costs; the caller decides whether that is too much.
  static uint64_t BytesFor(const Launch& launch);

  // Poisons memory, sets special registers, and readies every thread of cluster `index` at the
  // kernel's start.
  Cluster& Start(int64_t index, uint64_t step_limit);

 private:
  void StartWarp(Warp& warp);

  const Launch& launch_;
  Cluster cluster_;
  std::vector<uint64_t> registers_, shared_, local_;
  std::vector<uint32_t> masks_;
};

}  // namespace jax_ptx::emulator
