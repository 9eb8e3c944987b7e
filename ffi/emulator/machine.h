// Runs a kernel of a PTX module on the host, with checks that hardware does not make.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "emulator/compile.h"
#include "emulator/finding.h"
#include "emulator/schedule.h"
#include "launch.h"
#include "ptx/program.h"
#include "status.h"

namespace jax_ptx::emulator {

// Runs task(0) … task(n-1) in any order on any threads and returns when all are done (the caller
// works too).
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>& task)>;

// A parameter that is no tensor: its place among the entry's parameters, and its bytes.
struct Scalar {
  size_t position = 0;
  std::vector<uint8_t> bytes;
};

struct Options {
  uint64_t step_limit = uint64_t{1} << 27;  // warp instructions of one cluster: some seconds
  Turns turns;
  Observation* observation = nullptr;  // given, the run is an observed one
};

// Whether the emulator can run the entry at all: what needs no buffers, for the time of
// compilation.
Status Check(const ptx::Module& module, std::string_view entry);

// The memory that a resident warp of the entry takes.
Result<uint64_t> WarpBytes(const ptx::Module& module, std::string_view entry);

// The scalars stand at their positions among the entry's parameters, the tensors, each a .u64, fill
// the rest in order. Gives results that are not aliased a NaN pattern, then runs every CTA. When
// several CTAs fail, the error is that of the first; an observation has it among its findings.
Status Run(const ptx::Module& module, Programs& programs, std::string_view entry,
           const Geometry& geometry, const std::vector<Buffer>& tensors,
           const std::vector<Scalar>& scalars, const Options& options,
           const ParallelFor& parallel_for);

}  // namespace jax_ptx::emulator
