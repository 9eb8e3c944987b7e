// The texts of faults: kernel, PTX line, instruction, CTA, thread, and what went wrong.
#pragma once

#include <string>

#include "emulator/memory.h"
#include "emulator/spin.h"

namespace jax_ptx::emulator {

std::string Hex(uint64_t value);
std::string Bytes(uint64_t count);         // 4 bytes
std::string Kernel(const Launch& launch);  // emulator: kernel `k`
std::string Place(const Step& step);       // PTX line 12 `bar.sync 0`
std::string Triple(const Dim3& id);        // (0,1,0)
Dim3 CtaId(const Launch& launch, int64_t cluster, uint32_t rank);
Dim3 ThreadId(const Launch& launch, uint32_t thread);  // of a linear number in the CTA
Site SiteOf(const Launch& launch, const Step& step, const Dim3& cta, uint32_t thread);
std::string Text(const Site& site);  // PTX line 12 `bar.sync 0`, CTA (0,0,0), thread (0,0,0)

// What an address means: a tensor or variable, or shared memory, and the byte offset in it.
struct Meaning {
  std::string memory;
  int64_t offset = 0;
  std::string text;  // byte offset 8 of parameter 1 (`y`) with 256 bytes
};
Meaning MeaningOf(const Warp& warp, ptx::Space space, uint64_t address);

// A finding at the lane's instruction, which begins with kernel, place, CTA and thread.
Finding MakeFinding(const Warp& warp, const Step& step, int lane, Kind kind,
                    const std::string& what);
// Records it as the cluster's fault, unless it has one already.
void Report(Warp& warp, const Step& step, int lane, const std::string& what,
            Kind kind = Kind::kInvalid);

void ReportOutside(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address,
                   uint32_t bytes, Access access);
void ReportMisaligned(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address,
                      uint32_t bytes);
void ReportReadOnly(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address);

// Nobody in the cluster can move: says who waits where, or goes round in a loop.
void ReportDeadlock(Cluster& cluster, const std::vector<Spin>& spins);
void ReportInterrupt(Cluster& cluster);
void ReportStepLimit(Warp& warp, uint64_t limit);

}  // namespace jax_ptx::emulator
