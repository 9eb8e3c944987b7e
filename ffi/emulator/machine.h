// Runs a kernel of a PTX module on the host, with checks that hardware does not make.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "launch.h"
#include "ptx/program.h"
#include "status.h"

namespace jax_ptx::emulator {

// Runs task(0) … task(n-1) in any order on any threads and returns when all are done (the caller
// works too).
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>& task)>;

struct Options {
  bool race_check = false;
  uint64_t step_limit = uint64_t{1} << 27;  // warp instructions of one cluster: some seconds
};

// Whether the emulator can run the entry at all: what needs no buffers, for the time of
// compilation.
Status Check(const ptx::Module& module, std::string_view entry);

// `tensors` are one .param .u64 each, in order, and `scalars` the ones that follow. Fills results
// that are not aliased with a NaN pattern, then runs every CTA. When several CTAs fail, the error
// is that of the first.
Status Run(const ptx::Module& module, std::string_view entry, const Geometry& geometry,
           const std::vector<Buffer>& tensors, const std::vector<uint64_t>& scalars,
           const Options& options, const ParallelFor& parallel_for);

}  // namespace jax_ptx::emulator
