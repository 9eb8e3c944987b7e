// What the functions of the Python module share: records and buffers read from Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string_view>
#include <vector>

#include "launch.h"
#include "status.h"

namespace jax_ptx {

// Raises what Python code expects for each kind of error.
void RaiseIfError(const Status& status);

// A launch record read from a dict, with what its views point to. Made and destroyed with the GIL
// held.
class DictRecord {
 public:
  explicit DictRecord(nanobind::dict attributes);

  LaunchRecord record;

 private:
  nanobind::object Get(const char* name);
  std::string_view String(const char* name);
  Int64s Integers(const char* name);

  nanobind::dict attributes_;
  std::vector<nanobind::object> kept_;
  std::vector<int64_t> values_[8];
  size_t n_values_ = 0;
};

void CheckResultCount(size_t buffers, int64_t n_results);

// A C-contiguous numpy array, of any dtype, as a buffer.
Buffer FromArray(nanobind::handle array, size_t index, bool is_result);

// Threads made for one call: emulation takes far longer than their start.
void ParallelForOnThreads(int64_t n, const std::function<void(int64_t)>& task);

void BindObserve(nanobind::module_& m);     // observe.cc
void BindTensors(nanobind::module_& m);     // tensors.cc
void BindKnownCalls(nanobind::module_& m);  // known_calls.cc

}  // namespace jax_ptx
