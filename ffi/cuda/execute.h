// A launch record on NVIDIA's driver: what the handlers of the "CUDA" platform and the direct call
// share.
#pragma once

#include <atomic>

#include "launch.h"
#include "status.h"

namespace jax_ptx::cuda {

// What was found for a record that does not change, kept by whoever launches it often: its text is
// then not compared again.
class Program;
using Found = std::atomic<const Program*>;

// Loads the record's kernel and makes it ready on `device`, so that a launch has nothing left to
// load and may be captured into a CUDA graph. Next to free when that was done before.
Status Load(const LaunchRecord& record, int device);

// Whether a context of this device is the calling thread's.
bool IsCurrent(int device);

// Enqueues the record on device buffers, in parameter order, on `stream` (a CUstream); loads on a
// miss. Results of an empty launch become zeros.
Status Launch(const LaunchRecord& record, const Buffers& buffers, int device, void* stream,
              Found* found = nullptr);

}  // namespace jax_ptx::cuda
