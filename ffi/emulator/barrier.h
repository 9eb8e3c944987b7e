// Barriers of a CTA, of a warp and of a cluster.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Lanes have exited: the cluster's barrier counts the threads that are left.
void LeaveCluster(Warp& warp, uint32_t lanes);

}  // namespace jax_ptx::emulator
