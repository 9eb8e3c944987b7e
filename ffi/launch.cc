#include "launch.h"

#include <algorithm>

namespace jax_ptx {
namespace {

using std::to_string;

constexpr int64_t kMaxGridYZ = 65535;
constexpr int64_t kMaxBlockThreads = 1024;
constexpr Dim3 kMaxBlock = {1024, 1024, 64};
// The largest that any target takes (sm_90); the driver's own limit for a device is asked at load.
constexpr int64_t kMaxClusterCtas = 16;
constexpr int64_t kMaxSmemBytes = 232448;

Dim3 ToDim3(const Int64s& values) { return {values[0], values[1], values[2]}; }

// False when the product does not fit. Both factors are non-negative.
bool Multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

Status Invalid(const LaunchRecord& record, const std::string& what) {
  return InvalidArgument(Prefix(record) + what);
}

Status CheckLengths(const LaunchRecord& record) {
  const size_t tensors = record.unit_bytes.size;
  const struct {
    const char* name;
    size_t came, expected;
  } lengths[] = {
      {"grid", record.grid.size, 3},
      {"block", record.block.size, 3},
      {"cluster", record.cluster.size, 3},
      {"dims", record.dims.size, tensors},
      {"batch_mask", record.batch_mask.size, tensors * record.batch.size},
  };
  for (const auto& length : lengths) {
    if (length.came != length.expected) {
      return Invalid(record, std::string("attribute ") + length.name + " must have " +
                                 to_string(length.expected) + " elements, got " +
                                 to_string(length.came));
    }
  }
  return {};
}

Status CheckRange(const LaunchRecord& record, const char* name, const Int64s& values, int64_t least,
                  int64_t most) {
  for (size_t i = 0; i < values.size; ++i) {
    if (values[i] < least || values[i] > most) {
      return Invalid(record, std::string("attribute ") + name + "[" + to_string(i) +
                                 "] must be between " + to_string(least) + " and " +
                                 to_string(most) + ", got " + to_string(values[i]));
    }
  }
  return {};
}

Status CheckGeometry(const LaunchRecord& record) {
  const Dim3 grid = ToDim3(record.grid), block = ToDim3(record.block);
  const Dim3 cluster = ToDim3(record.cluster);
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t most = axis == 0 ? kMaxGridX : kMaxGridYZ;
    const std::string_view letter(&"xyz"[axis], 1);
    if (grid[axis] < 0 || grid[axis] > most) {
      return Invalid(record, "grid " + ToString(grid) + " has " + to_string(grid[axis]) +
                                 " CTAs along " + std::string(letter) + "; a GPU takes 0 to " +
                                 to_string(most) + (axis == 0 ? "" : ", and 2147483647 along x"));
    }
    if (block[axis] < 1 || block[axis] > kMaxBlock[axis]) {
      return Invalid(record, "block " + ToString(block) + " has " + to_string(block[axis]) +
                                 " threads along " + std::string(letter) + "; a GPU takes 1 to " +
                                 to_string(kMaxBlock[axis]));
    }
    if (cluster[axis] < 1 || cluster[axis] > kMaxClusterCtas) {
      return Invalid(record,
                     "cluster " + ToString(cluster) + " must be 1 to 16 CTAs along each axis");
    }
    // With rows_per_cta the grid's x is only a bound; Resolve rounds to whole clusters.
    const bool bound_only = axis == 0 && record.rows_per_cta > 0;
    if (bound_only ? grid[axis] < cluster[axis] : grid[axis] % cluster[axis] != 0) {
      return Invalid(record, "grid " + ToString(grid) + " must be whole clusters of " +
                                 ToString(cluster) + " along " + std::string(letter));
    }
  }
  if (block[0] * block[1] * block[2] > kMaxBlockThreads) {
    return Invalid(record, "block " + ToString(block) + " has " +
                               to_string(block[0] * block[1] * block[2]) +
                               " threads; a CTA has at most 1024");
  }
  if (cluster[0] * cluster[1] * cluster[2] > kMaxClusterCtas) {
    return Invalid(record, "cluster " + ToString(cluster) + " has " +
                               to_string(cluster[0] * cluster[1] * cluster[2]) +
                               " CTAs; a cluster has at most 16");
  }
  if (record.smem_bytes < 0 || record.smem_bytes > kMaxSmemBytes) {
    return Invalid(record, "smem_bytes must be between 0 and " + to_string(kMaxSmemBytes) +
                               " (227 KiB, the most of any target), got " +
                               to_string(record.smem_bytes));
  }
  return {};
}

Status CheckRunTimeDims(const LaunchRecord& record) {
  const int64_t highest = static_cast<int64_t>(RunTimeDims(record));
  for (int64_t number = 1; number <= highest; ++number) {
    const int64_t* end = record.dims.data + record.dims.size;
    if (std::find(record.dims.data, end, number) == end) {
      return Invalid(record, "attribute dims must name run-time dimensions 1 to " +
                                 to_string(highest) + " without a gap; no tensor has " +
                                 to_string(number));
    }
  }
  if (record.rows_per_cta < 0) {
    return Invalid(record, "rows_per_cta must be 0 or more, got " + to_string(record.rows_per_cta));
  }
  if (record.rows_per_cta > 0 && highest == 0) {
    return Invalid(record,
                   "rows_per_cta takes the grid from run-time dimension 1, and no tensor has it");
  }
  if (record.global_dims.size < RunTimeDims(record)) {
    return Invalid(record,
                   "attribute global_dims must have an element for each run-time dimension, " +
                       to_string(highest) + ", got " + to_string(record.global_dims.size));
  }
  return CheckRange(record, "global_dims", record.global_dims, 0, INT64_MAX);
}

std::string TensorName(const Buffers& buffers, size_t i) {
  const size_t operands = std::count_if(buffers.begin(), buffers.end(),
                                        [](const Buffer& buffer) { return !buffer.is_result; });
  return buffers[i].is_result ? "result " + to_string(i - operands) : "operand " + to_string(i);
}

// Bytes of tensor i over the whole batch, for one element of its run-time dimension.
bool BatchUnitBytes(const LaunchRecord& record, size_t i, int64_t* bytes) {
  const size_t rank = record.batch.size;
  *bytes = record.unit_bytes[i];
  for (size_t axis = 0; axis < rank; ++axis) {
    if (record.batch_mask[i * rank + axis] && !Multiply(*bytes, record.batch[axis], bytes)) {
      return false;
    }
  }
  return true;
}

// Reads the run-time dimensions off the buffers and compares every buffer's size with the record.
Status ResolveSizes(const LaunchRecord& record, const Buffers& buffers, ResolvedLaunch* resolved) {
  constexpr uint64_t kUnknown = UINT64_MAX;
  auto& dims = resolved->run_time_dims;
  for (size_t d = RunTimeDims(record); d > 0; --d) dims.push_back(kUnknown);
  resolved->tensors = buffers;

  for (size_t i = 0; i < buffers.size(); ++i) {
    int64_t unit = 0, bytes = 0;
    if (!BatchUnitBytes(record, i, &unit)) {
      return Invalid(record, TensorName(buffers, i) + " would have more than 2^63 bytes");
    }
    if (record.dims[i] == 0 || unit == 0) {
      bytes = unit;
    } else {
      uint64_t& dim = dims[record.dims[i] - 1];
      if (dim == kUnknown) dim = buffers[i].bytes / static_cast<uint64_t>(unit);
      if (dim > INT64_MAX || !Multiply(unit, static_cast<int64_t>(dim), &bytes)) {
        return Invalid(record, TensorName(buffers, i) + " would have more than 2^63 bytes");
      }
    }
    if (buffers[i].bytes != static_cast<uint64_t>(bytes)) {
      std::string rule;
      if (record.dims[i] > 0) {
        rule = " (" + to_string(unit) + " for each of the " +
               to_string(bytes / std::max<int64_t>(unit, 1)) + " that run-time dimension " +
               to_string(record.dims[i]) + " counts)";
      }
      return Invalid(record, TensorName(buffers, i) + " must have " + to_string(bytes) + " bytes" +
                                 rule + ", got " + to_string(buffers[i].bytes));
    }
    resolved->tensors[i].bytes = record.unit_bytes[i];
  }
  // A dimension that only empty tensors have cannot be told from their bytes: there is nothing to
  // do.
  std::replace(dims.begin(), dims.end(), kUnknown, uint64_t{0});
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (record.dims[i] > 0) resolved->tensors[i].bytes *= dims[record.dims[i] - 1];
  }
  return {};
}

// Whether no operand has this run-time dimension: it counts partial sums over another one.
bool CountsSums(const LaunchRecord& record, const Buffers& buffers, size_t dim) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].is_result && record.dims[i] == static_cast<int64_t>(dim + 1)) return false;
  }
  return true;
}

// Whether XLA padded the rows that it split: a leading dimension of operand 0 where those are
// known, or else the product that run-time dimension 1 is.
bool IsPadded(const LaunchRecord& record, const Buffers& buffers, int64_t local) {
  const Int64s& global = record.global_dims;
  const size_t first = RunTimeDims(record), n_leading = global.size - first;
  if (n_leading == 0 || buffers.size() == 0 || buffers[0].shape.size < n_leading) {
    return local > 0 && global[0] % local != 0;
  }
  const Int64s& shape = buffers[0].shape;
  for (size_t axis = 0; axis < n_leading; ++axis) {
    if (shape[axis] > 0 && global[first + axis] % shape[axis] != 0) return true;
  }
  return false;
}

// XLA splits each tensor by itself, and pads what the devices do not divide: of 60 rows and 12 sums
// over 5 of them, each of eight devices gets 8 rows and 2 sums, which do not belong together. Where
// the split is alike, padding ends up with padding, or, if another axis comes before the padded
// one, in a sum: sums take no padding, unless each is of one row.
Status CheckSplit(const LaunchRecord& record, const Buffers& buffers,
                  const ResolvedLaunch& resolved) {
  const Int64s& global = record.global_dims;
  const auto local = [&](size_t dim) { return static_cast<int64_t>(resolved.run_time_dims[dim]); };
  const auto share = [&](size_t dim) {
    return to_string(local(dim)) + " of the " + to_string(global[dim]) +
           " that run-time dimension " + to_string(dim + 1) + " counts";
  };
  const size_t n_dims = RunTimeDims(record);
  if (n_dims < 2) return {};
  const bool padded = IsPadded(record, buffers, local(0));
  for (size_t dim = 1; dim < n_dims; ++dim) {
    if (global[0] == 0 || global[dim] == 0) continue;
    int64_t left = 0, right = 0;
    const bool alike = Multiply(local(dim), global[0], &left) &&
                       Multiply(global[dim], local(0), &right) && left == right;
    const bool sums = CountsSums(record, buffers, 0) || CountsSums(record, buffers, dim);
    if (!alike || (padded && sums && global[dim] != global[0])) {
      return Invalid(record, "XLA split the rows unevenly: a device has " + share(0) + " and " +
                                 share(dim) +
                                 "; make the sharded dimension a multiple of the devices over "
                                 "which it is sharded");
    }
  }
  return {};
}

// A result is either an operand's memory exactly or nobody's: a part of it would be written under a
// reader.
Status MarkAliases(const LaunchRecord& record, const Buffers& buffers, ResolvedLaunch* resolved) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& result = buffers[i];
    if (!result.is_result || result.bytes == 0) continue;
    for (size_t j = 0; j < i; ++j) {
      const Buffer& other = buffers[j];
      if (other.address >= result.address + result.bytes ||
          result.address >= other.address + other.bytes) {
        continue;
      }
      if (other.is_result || other.address != result.address || other.bytes != result.bytes) {
        return Invalid(record, TensorName(buffers, i) + " overlaps " + TensorName(buffers, j) +
                                   "; a result may only share an operand's whole memory");
      }
      resolved->tensors[i].is_aliased = true;
    }
  }
  return {};
}

Status ResolveGeometry(const LaunchRecord& record, ResolvedLaunch* resolved) {
  Geometry& geometry = resolved->geometry;
  geometry = {ToDim3(record.grid), ToDim3(record.block), ToDim3(record.cluster), record.smem_bytes};
  if (record.rows_per_cta == 0) return {};
  const int64_t rows = static_cast<int64_t>(resolved->run_time_dims[0]);
  const int64_t cluster = geometry.cluster[0];
  int64_t ctas = rows / record.rows_per_cta + (rows % record.rows_per_cta != 0);
  // With a lower bound the kernel itself strides over the rows; "no limit" must not drop any.
  if (geometry.grid[0] == kMaxGridX && ctas > kMaxGridX / cluster * cluster) {
    return Invalid(record, to_string(rows) + " rows need " + to_string(ctas) +
                               " CTAs; a grid has at most 2147483647 along x");
  }
  ctas = std::min(ctas, geometry.grid[0]);
  ctas = ctas / cluster * cluster + (ctas % cluster != 0 ? cluster : 0);
  geometry.grid[0] = std::min(ctas, geometry.grid[0] / cluster * cluster);
  return {};
}

Status ResolveBatch(const LaunchRecord& record, const Buffers& buffers, ResolvedLaunch* resolved) {
  const size_t rank = record.batch.size;
  for (size_t axis = 0; axis < rank; ++axis) {
    if (!Multiply(resolved->batch_size, record.batch[axis], &resolved->batch_size)) {
      return Invalid(record, "the batch has more than 2^63 elements");
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].is_result && !record.batch_mask[i * rank + axis]) {
        return Invalid(record, TensorName(buffers, i) + " lacks batch axis " + to_string(axis) +
                                   ": the launches of a batch would overwrite it");
      }
    }
  }
  return {};
}

}  // namespace

std::string Prefix(const LaunchRecord& record) {
  return "kernel `" + std::string(record.entry) + "`: ";
}

std::string ToString(const Dim3& dim3) {
  return "(" + to_string(dim3[0]) + ", " + to_string(dim3[1]) + ", " + to_string(dim3[2]) + ")";
}

size_t RunTimeDims(const LaunchRecord& record) {
  int64_t highest = 0;
  for (size_t i = 0; i < record.dims.size; ++i) highest = std::max(highest, record.dims[i]);
  return static_cast<size_t>(highest);
}

Status ValidateNumbers(const LaunchRecord& record) {
  constexpr int64_t kAny = INT64_MAX;
  JAX_PTX_RETURN_IF_ERROR(CheckLengths(record));
  JAX_PTX_RETURN_IF_ERROR(CheckGeometry(record));
  JAX_PTX_RETURN_IF_ERROR(CheckRange(record, "unit_bytes", record.unit_bytes, 0, kAny));
  JAX_PTX_RETURN_IF_ERROR(
      CheckRange(record, "dims", record.dims, 0, static_cast<int64_t>(record.dims.size)));
  JAX_PTX_RETURN_IF_ERROR(CheckRange(record, "batch", record.batch, 0, kAny));
  JAX_PTX_RETURN_IF_ERROR(CheckRange(record, "batch_mask", record.batch_mask, 0, 1));
  return CheckRunTimeDims(record);
}

Status Validate(const LaunchRecord& record) {
  if (record.entry.empty()) return InvalidArgument("the launch record has no entry name");
  if (record.ptx.empty()) return Invalid(record, "the launch record has no PTX text");
  // The driver takes a C string and would load only what comes before it.
  if (record.ptx.find('\0') != record.ptx.npos) {
    return Invalid(record, "the PTX text holds a NUL character, at offset " +
                               to_string(record.ptx.find('\0')));
  }
  return ValidateNumbers(record);
}

Status Resolve(const LaunchRecord& record, const Buffers& buffers, ResolvedLaunch* resolved) {
  JAX_PTX_RETURN_IF_ERROR(ValidateNumbers(record));
  if (buffers.size() != record.unit_bytes.size) {
    return Invalid(record, "the launch record describes " + to_string(record.unit_bytes.size) +
                               " tensors, and " + to_string(buffers.size()) + " buffers came");
  }
  JAX_PTX_RETURN_IF_ERROR(ResolveSizes(record, buffers, resolved));
  JAX_PTX_RETURN_IF_ERROR(CheckSplit(record, buffers, *resolved));
  JAX_PTX_RETURN_IF_ERROR(MarkAliases(record, buffers, resolved));
  JAX_PTX_RETURN_IF_ERROR(ResolveBatch(record, buffers, resolved));
  JAX_PTX_RETURN_IF_ERROR(ResolveGeometry(record, resolved));
  const Dim3& grid = resolved->geometry.grid;
  const auto& dims = resolved->run_time_dims;
  resolved->empty = resolved->batch_size == 0 || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 ||
                    std::find(dims.begin(), dims.end(), 0) != dims.end();
  return {};
}

uint64_t BatchOffset(const LaunchRecord& record, const ResolvedLaunch& resolved, size_t tensor,
                     int64_t element) {
  const size_t rank = record.batch.size;
  uint64_t index = 0, stride = 1;
  for (size_t axis = rank; axis-- > 0;) {
    const int64_t size = record.batch[axis];
    if (record.batch_mask[tensor * rank + axis]) {
      index += stride * static_cast<uint64_t>(element % size);
      stride *= static_cast<uint64_t>(size);
    }
    element /= size;
  }
  return index * resolved.tensors[tensor].bytes;
}

}  // namespace jax_ptx
