// A launch record on the CPU: what the handlers of the "cpu" platform and the direct call share.
#pragma once

#include <vector>

#include "emulator/machine.h"
#include "launch.h"
#include "status.h"

namespace jax_ptx {

// Validates the record and decodes its text, so that XLA reports a bad one when it compiles.
Status PrepareEmulation(const LaunchRecord& record);

// The memory that a resident warp takes: registers, local memory, and who has written what.
Result<uint64_t> WarpBytes(const LaunchRecord& record);

// Runs the record on host buffers, in parameter order but for scalars, which have positions of
// their own. Results of an empty launch become zeros.
Status Emulate(const LaunchRecord& record, const Buffers& buffers,
               const std::vector<emulator::Scalar>& scalars, const emulator::Options& options,
               const emulator::ParallelFor& parallel_for);

}  // namespace jax_ptx
