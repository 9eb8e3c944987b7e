// The texts of faults: kernel, PTX line, instruction, CTA, thread, and what went wrong.
#pragma once

#include <string>

#include "emulator/memory.h"

namespace jax_ptx::emulator {

std::string Hex(uint64_t value);

// Records `what` for the lane, with its place, unless the cluster has failed already.
void Report(Warp& warp, const Step& step, int lane, const std::string& what);

void ReportOutside(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address,
                   uint32_t bytes, Access access);
void ReportMisaligned(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address,
                      uint32_t bytes);
void ReportReadOnly(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address);
void ReportUnwritten(Warp& warp, const Step& step, int lane, uint32_t number);

// Nobody in the cluster can move: says who waits where.
void ReportDeadlock(Cluster& cluster);
void ReportStepLimit(Warp& warp, uint64_t limit);

std::string Place(const Step& step);  // PTX line 12 `bar.sync 0`

}  // namespace jax_ptx::emulator
