// Registers without a value: of those that no instruction wrote, and of what was computed from
// them. Compilers read such registers ahead of the condition that makes the result unused, so the
// values are carried along, bit by bit; a finding is what decides something or leaves the thread.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Runs a step of which some lane of the mask reads a register that is not defined.
Outcome RunUndefined(Warp& warp, const Step& step, uint32_t mask);

// The guard, whose number in Warp::defined is given, is not defined in some lane of the mask.
void ReportUndefinedGuard(Warp& warp, const Step& step, uint32_t mask, uint32_t number);

}  // namespace jax_ptx::emulator
