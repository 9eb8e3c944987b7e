#include "cuda/driver.h"

#include <dlfcn.h>

namespace jax_ptx::cuda {
namespace {

using std::to_string;

#define JAX_PTX_STRING_OF(text) #text
#define JAX_PTX_STRING(macro) JAX_PTX_STRING_OF(macro)

Result<const Driver*> Open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return FailedPrecondition(
        std::string(
            "an NVIDIA driver is needed to launch a kernel on a GPU, and libcuda.so.1 could "
            "not be opened: ") +
        dlerror());
  }
  static Driver driver;
  std::string missing;
#define JAX_PTX_DRIVER_RESOLVE(name)                                                           \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, JAX_PTX_STRING(name))); \
  if (driver.name == nullptr && missing.empty()) missing = JAX_PTX_STRING(name);
  JAX_PTX_DRIVER_FUNCTIONS(JAX_PTX_DRIVER_RESOLVE)
#undef JAX_PTX_DRIVER_RESOLVE

  if (driver.cuDriverGetVersion != nullptr) driver.cuDriverGetVersion(&driver.version);
  if (!missing.empty()) {
    return FailedPrecondition("the NVIDIA driver is too old: it is for " +
                              VersionName(driver.version) + " and lacks " + missing +
                              "; jax_ptx needs a driver for CUDA 12.4 or newer (550 or newer)");
  }
  JAX_PTX_CUDA(driver, cuInit(0));
  JAX_PTX_CUDA(driver, cuDeviceGetCount(&driver.device_count));
  return &driver;
}

}  // namespace

const Result<const Driver*>& GetDriver() {
  static const auto& driver = *new Result<const Driver*>(Open());
  return driver;
}

std::string VersionName(int version) {
  return "CUDA " + to_string(version / 1000) + "." + to_string(version % 1000 / 10);
}

std::string ErrorName(const Driver& driver, CUresult result) {
  const char *name = nullptr, *words = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &words);
  return (name != nullptr ? name : "CUresult " + to_string(result)) + " (" +
         (words != nullptr ? words : "unknown to this driver") + ")";
}

Status DriverError(const Driver& driver, CUresult result, const char* call, const char* file,
                   int line) {
  std::string message = std::string(call) + " failed: " + ErrorName(driver, result) + " [" + file +
                        ":" + to_string(line) + "]";
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return ResourceExhausted(std::move(message));
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return FailedPrecondition(std::move(message));
    default:
      return Internal(std::move(message));
  }
}

ScopedDevice::ScopedDevice(const Driver& driver, int ordinal) : driver_(driver) {
  const bool current = driver.cuCtxGetDevice(&device_) == CUDA_SUCCESS;
  if (!current || (ordinal >= 0 && device_ != ordinal)) status_ = Enter(ordinal);
}

Status ScopedDevice::Enter(int ordinal) {
  if (ordinal < 0) return Internal("no CUDA context is current, and no device was named");
  if (ordinal >= driver_.device_count) {
    return InvalidArgument("there is no device " + to_string(ordinal) + "; the driver sees " +
                           to_string(driver_.device_count));
  }
  CUcontext context = nullptr;
  JAX_PTX_CUDA(driver_, cuDeviceGet(&device_, ordinal));
  JAX_PTX_CUDA(driver_, cuDevicePrimaryCtxRetain(&context, device_));
  retained_ = true;
  JAX_PTX_CUDA(driver_, cuCtxPushCurrent(context));
  pushed_ = true;
  return {};
}

ScopedDevice::~ScopedDevice() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&popped);
  if (retained_) driver_.cuDevicePrimaryCtxRelease(device_);
}

}  // namespace jax_ptx::cuda
