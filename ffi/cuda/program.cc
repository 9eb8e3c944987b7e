#include "cuda/program.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/signature.h"

namespace jax_ptx::cuda {
namespace {

using std::to_string;

constexpr int kDefaultSmemBytes = 48 << 10;  // what a kernel may use without asking

// What follows each `directive` of the text, up to white space or punctuation, outside comments.
std::vector<std::string> DirectiveOperands(std::string_view text, std::string_view directive) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<std::string> operands;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "//") == 0) {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.compare(at, 2, "/*") == 0) {
      at = std::min(text.find("*/", at + 2), text.size() - 1);
    } else if (text.compare(at, directive.size(), directive) == 0) {
      const size_t begin = text.find_first_not_of(kSpace, at + directive.size());
      if (begin == text.npos || begin == at + directive.size()) continue;
      const size_t end = std::min(text.find_first_of(" \t\r\n(,{;/", begin), text.size());
      operands.emplace_back(text.substr(begin, end - begin));
      at = end - 1;
    }
  }
  return operands;
}

std::string FirstOperand(std::string_view text, std::string_view directive) {
  const auto operands = DirectiveOperands(text, directive);
  return operands.empty() ? "(no " + std::string(directive) + ")" : operands[0];
}

// Why a target such as sm_90a cannot run on compute capability 9.0 and the like; empty if it can.
std::string TargetHint(const std::string& target, int capability) {
  if (target.compare(0, 3, "sm_") != 0) return "";
  int number = 0;
  size_t end = 3;
  for (; end < target.size() && target[end] >= '0' && target[end] <= '9' && end < 8; ++end) {
    number = number * 10 + (target[end] - '0');
  }
  const char suffix = end < target.size() ? target[end] : '\0';
  if (number > capability) {
    return " The target is newer than the device: build the kernel with arch=\"sm_" +
           to_string(capability) + "\" or an older one.";
  }
  if (suffix == 'a' && number != capability) {
    return " A target with the suffix 'a' runs on that very compute capability only.";
  }
  if (suffix == 'f' && number / 10 != capability / 10) {
    return " A target with the suffix 'f' runs on its own family of devices only.";
  }
  return "";
}

int Attribute(const Driver& driver, CUdevice_attribute attribute, int device) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

int ComputeCapability(const Driver& driver, int device) {
  return 10 * Attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) +
         Attribute(driver, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

// "device 0 (NVIDIA H200, compute capability 9.0, driver for CUDA 13.0)"
std::string DescribeDevice(const Driver& driver, int device) {
  char name[128] = "unknown";
  if (driver.cuDeviceGetName(name, sizeof(name), device) != CUDA_SUCCESS) name[0] = '?';
  const int capability = ComputeCapability(driver, device);
  return "device " + to_string(device) + " (" + name + ", compute capability " +
         to_string(capability / 10) + "." + to_string(capability % 10) + ", driver for " +
         VersionName(driver.version) + ")";
}

int64_t Product(const Int64s& dim3) { return dim3[0] * dim3[1] * dim3[2]; }

}  // namespace

Result<std::unique_ptr<const Program>> Program::Load(const Driver& driver,
                                                     const LaunchRecord& record, int device) {
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<Program> program(new Program(driver));
  program->devices_ = std::make_unique<DeviceState[]>(std::max(driver.device_count, 1));
  JAX_PTX_RETURN_IF_ERROR(program->LoadLibrary(record, device));
  JAX_PTX_RETURN_IF_ERROR(program->ReadParameters(record));
  return std::unique_ptr<const Program>(std::move(program));
}

Program::~Program() {
  if (library_ != nullptr) driver_.cuLibraryUnload(library_);
}

Status Program::LoadLibrary(const LaunchRecord& record, int device) {
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log_->error, reinterpret_cast<void*>(sizeof(log_->error)), log_->info,
                    reinterpret_cast<void*>(sizeof(log_->info))};
  const std::string text(record.ptx);  // the driver wants the final NUL, which an attribute lacks
  CUresult result =
      driver_.cuLibraryLoadData(&library_, text.c_str(), options, values, 4, nullptr, nullptr, 0);
  if (result != CUDA_SUCCESS) {
    library_ = nullptr;
    return LoadError(record, device, "cuLibraryLoadData", result);
  }
  const std::string entry(record.entry);
  result = driver_.cuLibraryGetKernel(&kernel_, library_, entry.c_str());
  if (result == CUDA_ERROR_NOT_FOUND) {
    std::string names;
    for (const std::string& name : DirectiveOperands(record.ptx, ".entry")) {
      names += (names.empty() ? "" : ", ") + name;
    }
    return InvalidArgument(Prefix(record) + "the PTX has no .entry of that name; it has " +
                           (names.empty() ? "none" : names));
  }
  if (result != CUDA_SUCCESS) return LoadError(record, device, "cuLibraryGetKernel", result);
  return {};
}

Status Program::ReadParameters(const LaunchRecord& record) {
  // The driver tells a parameter's size, and not how many there are; asking for one too many is an
  // error that compute-sanitizer reports. The text that it has just compiled tells.
  Result<size_t> count = ptx::CountParameters(record.ptx, record.entry);
  if (!count.ok()) return InvalidArgument(Prefix(record) + count.status().message());
  for (n_parameters_ = 0; n_parameters_ < *count; ++n_parameters_) {
    size_t offset = 0, bytes = 0;
    JAX_PTX_CUDA(driver_, cuKernelGetParamInfo(kernel_, n_parameters_, &offset, &bytes));
    if (bytes != sizeof(uint64_t)) {
      return InvalidArgument(Prefix(record) + "parameter " + to_string(n_parameters_) +
                             " must be a .u64 of 8 bytes, got one of " + to_string(bytes));
    }
  }
  return {};
}

Status Program::Check(const LaunchRecord& record, int device) const {
  const size_t tensors = record.unit_bytes.size, dims = RunTimeDims(record);
  if (tensors + dims != n_parameters_) {
    return InvalidArgument(Prefix(record) + "the .entry has " + to_string(n_parameters_) +
                           " parameters, and the launch record " + to_string(tensors) +
                           " tensors and " + to_string(dims) +
                           " run-time dimensions; each takes one .u64");
  }
  if (device < 0 || device >= driver_.device_count) {
    return Internal(Prefix(record) + "device " + to_string(device) + " is none of the driver's " +
                    to_string(driver_.device_count));
  }
  const DeviceState& state = devices_[device];
  if (state.block_threads.load(std::memory_order_acquire) == 0) {
    JAX_PTX_RETURN_IF_ERROR(Prepare(record, device));
  }
  if (record.smem_bytes > state.dynamic_smem_bytes.load(std::memory_order_acquire)) {
    JAX_PTX_RETURN_IF_ERROR(RaiseSmem(record, device));
  }
  if (Product(record.block) > state.block_threads.load(std::memory_order_relaxed)) {
    return InvalidArgument(
        Prefix(record) + "a block of " + to_string(Product(record.block)) +
        " threads is too large; registers, or the text's .maxntid or .reqntid, allow " +
        to_string(state.block_threads.load()) + " on " + DescribeDevice(driver_, device));
  }
  if (Product(record.cluster) > 1 && !state.clusters.load(std::memory_order_relaxed)) {
    return InvalidArgument(Prefix(record) +
                           "a cluster needs compute capability 9.0 or newer; this is " +
                           DescribeDevice(driver_, device));
  }
  return {};
}

// Forces what lazy loading put off, and reads the kernel's limits.
Status Program::Prepare(const LaunchRecord& record, int device) const {
  const RelaxedCapture relaxed(driver_);
  CUfunction function = nullptr;
  const CUresult result = driver_.cuKernelGetFunction(&function, kernel_);
  if (result != CUDA_SUCCESS) return LoadError(record, device, "cuKernelGetFunction", result);

  int block_threads = 0, static_smem_bytes = 0;
  JAX_PTX_CUDA(driver_,
               cuKernelGetAttribute(&block_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                    kernel_, device));
  JAX_PTX_CUDA(driver_, cuKernelGetAttribute(&static_smem_bytes,
                                             CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel_, device));
  const bool clusters = ComputeCapability(driver_, device) >= 90;
  if (clusters) {  // only a permission: clusters of more than 8
    JAX_PTX_CUDA(driver_, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                                               1, kernel_, device));
  }
  DeviceState& state = devices_[device];
  state.clusters.store(clusters, std::memory_order_relaxed);
  int ready = 0;  // another thread may have raised it already
  state.dynamic_smem_bytes.compare_exchange_strong(
      ready, std::max(kDefaultSmemBytes - static_smem_bytes, 0));
  state.block_threads.store(block_threads, std::memory_order_release);
  return {};
}

Status Program::RaiseSmem(const LaunchRecord& record, int device) const {
  int static_smem_bytes = 0;
  JAX_PTX_CUDA(driver_, cuKernelGetAttribute(&static_smem_bytes,
                                             CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel_, device));
  const int limit =
      Attribute(driver_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  if (record.smem_bytes > limit - static_smem_bytes) {
    return InvalidArgument(Prefix(record) + "a CTA needs " +
                           to_string(record.smem_bytes + static_smem_bytes) +
                           " bytes of shared memory (" + to_string(static_smem_bytes) +
                           " static, " + to_string(record.smem_bytes) + " dynamic); " +
                           DescribeDevice(driver_, device) + " has " + to_string(limit));
  }
  JAX_PTX_CUDA(driver_, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             limit - static_smem_bytes, kernel_, device));
  devices_[device].dynamic_smem_bytes.store(limit - static_smem_bytes, std::memory_order_release);
  return {};
}

Status Program::LoadError(const LaunchRecord& record, int device, const char* function,
                          CUresult result) const {
  const std::string target = FirstOperand(record.ptx, ".target");
  std::string message =
      Prefix(record) + function + " refused the PTX: " + ErrorName(driver_, result) +
      ". The text needs PTX ISA " + FirstOperand(record.ptx, ".version") + " and target " + target +
      "; this is " + DescribeDevice(driver_, device) + ".";
  if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
    message += " Use an older .version, or a newer driver.";
  }
  message += TargetHint(target, ComputeCapability(driver_, device));
  for (const char* log : {log_->error, log_->info}) {
    if (log[0] != '\0') message += std::string("\nJIT log:\n") + log;
  }
  switch (result) {
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_INVALID_IMAGE:
      return InvalidArgument(std::move(message));
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return FailedPrecondition(std::move(message));
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ResourceExhausted(std::move(message));
    default:
      return Internal(std::move(message));
  }
}

}  // namespace jax_ptx::cuda
