// A launch record that is read once and launched often.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "cuda/execute.h"
#include "launch.h"
#include "python.h"
#include "status.h"

namespace jax_ptx {

class Launcher {
 public:
  Launcher(nanobind::dict attributes, int64_t n_results)
      : holder_(std::move(attributes)), n_results_(n_results) {}
  Launcher(const Launcher&) = delete;  // the record's views point into the holder

  int64_t n_results() const { return n_results_; }

  // Enqueues it on a CUDA stream, without the GIL: a full queue waits.
  Status Enqueue(const Buffers& buffers, int device, void* stream) {
    nanobind::gil_scoped_release release;
    return cuda::Launch(holder_.record, buffers, device, stream, &found_);
  }

 private:
  const DictRecord holder_;
  const int64_t n_results_;
  cuda::Found found_{nullptr};
};

}  // namespace jax_ptx
