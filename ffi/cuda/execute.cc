#include "cuda/execute.h"

#include <memory>
#include <string>

#include "content_cache.h"
#include "cuda/driver.h"
#include "cuda/program.h"

namespace jax_ptx::cuda {
namespace {

using Programs = ContentCache<std::unique_ptr<const Program>>;

Programs& ProgramCache() {
  static auto& cache = *new Programs;  // never destroyed: at exit the driver may be gone before us
  return cache;
}

// The record's kernel, ready on `device`, whose context is current. A hit allocates nothing, calls
// no driver and takes one shared lock; with what was `found` before, none.
Result<CUkernel> FindOrLoad(const Driver& driver, const LaunchRecord& record, int device,
                            Found* found) {
  const Program* program = found != nullptr ? found->load(std::memory_order_acquire) : nullptr;
  if (program == nullptr) {
    auto in_cache =
        ProgramCache().FindOrMake(record, [&]() -> Result<std::unique_ptr<const Program>> {
          JAX_PTX_RETURN_IF_ERROR(Validate(record));
          return Program::Load(driver, record, device);
        });
    if (!in_cache.ok()) return in_cache.status();
    program = (*in_cache)->get();
    if (found != nullptr) found->store(program, std::memory_order_release);
  }
  JAX_PTX_RETURN_IF_ERROR(program->Check(record, device));
  return program->kernel();
}

Status FillZeros(const Driver& driver, const Buffers& buffers, const ResolvedLaunch& resolved,
                 CUstream stream) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].is_result || resolved.tensors[i].is_aliased || buffers[i].bytes == 0) continue;
    JAX_PTX_CUDA(driver, cuMemsetD8Async(buffers[i].address, 0, buffers[i].bytes, stream));
  }
  return {};
}

Status LaunchBatch(const Driver& driver, const LaunchRecord& record, const ResolvedLaunch& resolved,
                   CUkernel kernel, CUstream stream) {
  const auto& [grid, block, cluster, smem_bytes] = resolved.geometry;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = static_cast<unsigned>(cluster[0]);
  attribute.value.clusterDim.y = static_cast<unsigned>(cluster[1]);
  attribute.value.clusterDim.z = static_cast<unsigned>(cluster[2]);

  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(grid[0]);
  config.gridDimY = static_cast<unsigned>(grid[1]);
  config.gridDimZ = static_cast<unsigned>(grid[2]);
  config.blockDimX = static_cast<unsigned>(block[0]);
  config.blockDimY = static_cast<unsigned>(block[1]);
  config.blockDimZ = static_cast<unsigned>(block[2]);
  config.sharedMemBytes = static_cast<unsigned>(smem_bytes);
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster != Dim3{1, 1, 1};  // older devices take no cluster attribute at all

  InlineVector<uint64_t, 24> values;
  InlineVector<void*, 24> parameters;
  for (const Buffer& tensor : resolved.tensors) values.push_back(tensor.address);
  for (const uint64_t dim : resolved.run_time_dims) values.push_back(dim);
  for (uint64_t& value : values) parameters.push_back(&value);

  for (int64_t element = 0; element < resolved.batch_size; ++element) {
    for (size_t i = 0; element > 0 && i < resolved.tensors.size(); ++i) {
      values[i] = resolved.tensors[i].address + BatchOffset(record, resolved, i, element);
    }
    // The driver takes a CUkernel in a CUfunction's place, and finds the current context's
    // function.
    JAX_PTX_CUDA(driver, cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel),
                                          parameters.data(), nullptr));
  }
  return {};
}

Status Explain(const LaunchRecord& record, const Geometry& geometry, const Status& error) {
  return {error.code(),
          Prefix(record) + error.message() + "; grid " + ToString(geometry.grid) + ", block " +
              ToString(geometry.block) + ", cluster " + ToString(geometry.cluster) + ", " +
              std::to_string(geometry.smem_bytes) + " bytes of dynamic shared memory"};
}

}  // namespace

Status Load(const LaunchRecord& record, int device) {
  JAX_PTX_RETURN_IF_ERROR(ValidateNumbers(record));
  JAX_PTX_RETURN_IF_ERROR(GetDriver().status());
  const Driver& driver = **GetDriver();
  const ScopedDevice scope(driver, device);
  JAX_PTX_RETURN_IF_ERROR(scope.status());
  return FindOrLoad(driver, record, scope.device(), nullptr).status();
}

bool IsCurrent(int device) {
  CUdevice current = -1;
  return GetDriver().ok() && (*GetDriver())->cuCtxGetDevice(&current) == CUDA_SUCCESS &&
         current == device;
}

Status Launch(const LaunchRecord& record, const Buffers& buffers, int device, void* stream,
              Found* found) {
  ResolvedLaunch resolved;
  JAX_PTX_RETURN_IF_ERROR(Resolve(record, buffers, &resolved));
  JAX_PTX_RETURN_IF_ERROR(GetDriver().status());
  const Driver& driver = **GetDriver();
  const ScopedDevice scope(driver, device);
  JAX_PTX_RETURN_IF_ERROR(scope.status());
  if (resolved.empty) return FillZeros(driver, buffers, resolved, static_cast<CUstream>(stream));
  auto kernel = FindOrLoad(driver, record, scope.device(), found);
  if (!kernel.ok()) return kernel.status();
  const Status status =
      LaunchBatch(driver, record, resolved, *kernel, static_cast<CUstream>(stream));
  return status.ok() ? status : Explain(record, resolved.geometry, status);
}

}  // namespace jax_ptx::cuda
