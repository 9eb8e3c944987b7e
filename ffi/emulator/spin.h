// Loops that cannot end: lanes that go round and round with nothing changing, looking at memory
// that nobody is left to change.
#pragma once

#include <vector>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

struct Spin {
  const Warp* warp;
  uint32_t lanes;
  uint32_t pc;  // where they look, or jump
};

// Runs one step of a warp.
using StepWarp = void (*)(Warp& warp);

// Runs every group of lanes that can run for some thousand steps. When each came back to the state
// that it was in before, and wrote nothing on the way, no thread can ever go on: returns where they
// spin. Otherwise the cluster has moved on, and nothing is returned. `is_alone`: no other cluster
// runs meanwhile, which might write to global memory. Adds the steps that were run.
std::vector<Spin> FindSpins(Cluster& cluster, StepWarp step_warp, bool is_alone, uint64_t* steps);

}  // namespace jax_ptx::emulator
