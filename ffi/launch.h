// The launch record, as it travels in the custom call's attributes, and what it means for real
// buffers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "inline_vector.h"
#include "status.h"

namespace jax_ptx {

using Dim3 = std::array<int64_t, 3>;

// A read-only run of int64 that belongs to someone else (XLA, or Python for the length of a call).
struct Int64s {
  const int64_t* data = nullptr;
  size_t size = 0;
  int64_t operator[](size_t i) const { return data[i]; }
};

// One operand or result. Addresses are host addresses for the emulator, device addresses for CUDA.
struct Buffer {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool is_result = false;
  bool is_aliased = false;  // a result that shares its memory with an operand
  Int64s shape = {};        // the tensor's, of a device's share of it; empty where it is not known
};
using Buffers = InlineVector<Buffer, 16>;

// The attributes. Views only: valid as long as the attributes are.
//
// The entry's parameters are one `.u64` for each tensor, operands before results, then one `.u64`
// for each run-time dimension. A tensor's size is `unit_bytes[i]`, or, when `dims[i] = d > 0`,
// `unit_bytes[i]` times run-time dimension d, whose value is read off the buffers.
//
// With `rows_per_cta > 0` the grid's x is ceil(dimension 1 / rows_per_cta), rounded up to whole
// clusters and at most grid[0].
//
// `global_dims[d - 1]` is the size of run-time dimension d in the program as it was written, before
// XLA split it over devices; 0 means unknown. With it, tensors that were split unalike are noticed.
// Behind those elements may stand operand 0's leading dimensions before the split, so that padding
// of one of them is noticed where the products would not show it.
//
// With a `batch`, the kernel is launched once for each batch element, in order; `batch_mask[i *
// rank + axis]` says whether tensor i has that leading batch axis or is shared.
struct LaunchRecord {
  std::string_view ptx;
  std::string_view entry;
  int64_t key = 0;  // a hash of ptx and entry: a hint for the caches, never trusted
  Int64s grid;      // 3 elements, as block and cluster
  Int64s block;
  Int64s cluster;
  int64_t smem_bytes = 0;
  int64_t rows_per_cta = 0;
  Int64s unit_bytes;
  Int64s dims;
  Int64s global_dims;  // an element for each run-time dimension, then operand 0's leading ones
  Int64s batch;
  Int64s batch_mask;
};

// Most blocks along x that any target takes; as grid[0] with rows_per_cta it means "no limit".
constexpr int64_t kMaxGridX = 2147483647;

// What every launch of a record has in common.
struct Geometry {
  Dim3 grid, block, cluster;
  int64_t smem_bytes = 0;
};

// Checks what needs no buffer and no device: lengths, signs, limits that hold on every target. The
// numbers alone take some tens of nanoseconds; the text is searched for what no C string can hold.
Status Validate(const LaunchRecord& record);
Status ValidateNumbers(const LaunchRecord& record);

// How many run-time dimensions a valid record has.
size_t RunTimeDims(const LaunchRecord& record);

// A record resolved against buffers. `tensors` are the buffers of one launch at batch element 0;
// element b of the batch adds `BatchOffset(record, resolved, i, b)` bytes to tensor i.
struct ResolvedLaunch {
  Geometry geometry;
  Buffers tensors;
  InlineVector<uint64_t, 8> run_time_dims;
  int64_t batch_size = 1;
  bool empty = false;  // nothing to launch: a grid, a batch or a run-time dimension of size 0
};

// `buffers` in parameter order. Marks the results that share an operand's memory. `resolved` is a
// new one, filled where it stays: it is large to copy.
Status Resolve(const LaunchRecord& record, const Buffers& buffers, ResolvedLaunch* resolved);

uint64_t BatchOffset(const LaunchRecord& record, const ResolvedLaunch& resolved, size_t tensor,
                     int64_t element);

// "kernel `entry`: ", which begins every message about a launch.
std::string Prefix(const LaunchRecord& record);

// "(4, 1, 1)"
std::string ToString(const Dim3& dim3);

}  // namespace jax_ptx
