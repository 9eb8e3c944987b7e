// NVIDIA's driver, opened at the first use, so that the extension imports where there is none.
#pragma once

#include <cuda.h>

#include <string>

#include "status.h"

namespace jax_ptx::cuda {

// Every driver function that is called, by the name that cuda.h's macros give it (with _v2 and the
// like).
#define JAX_PTX_DRIVER_FUNCTIONS(FUNCTION)    \
  FUNCTION(cuInit)                            \
  FUNCTION(cuDriverGetVersion)                \
  FUNCTION(cuGetErrorName)                    \
  FUNCTION(cuGetErrorString)                  \
  FUNCTION(cuDeviceGet)                       \
  FUNCTION(cuDeviceGetCount)                  \
  FUNCTION(cuDeviceGetName)                   \
  FUNCTION(cuDeviceGetAttribute)              \
  FUNCTION(cuDevicePrimaryCtxRetain)          \
  FUNCTION(cuDevicePrimaryCtxRelease)         \
  FUNCTION(cuCtxGetDevice)                    \
  FUNCTION(cuCtxPushCurrent)                  \
  FUNCTION(cuCtxPopCurrent)                   \
  FUNCTION(cuLibraryLoadData)                 \
  FUNCTION(cuLibraryUnload)                   \
  FUNCTION(cuLibraryGetKernel)                \
  FUNCTION(cuKernelGetFunction)               \
  FUNCTION(cuKernelGetAttribute)              \
  FUNCTION(cuKernelSetAttribute)              \
  FUNCTION(cuKernelGetParamInfo)              \
  FUNCTION(cuThreadExchangeStreamCaptureMode) \
  FUNCTION(cuLaunchKernelEx)                  \
  FUNCTION(cuMemsetD8Async)

struct Driver {
#define JAX_PTX_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  JAX_PTX_DRIVER_FUNCTIONS(JAX_PTX_DRIVER_MEMBER)
#undef JAX_PTX_DRIVER_MEMBER
  int version = 0;  // 13020 is CUDA 13.2
  int device_count = 0;
};

// The driver, or why there is none: the same answer for the life of the process.
const Result<const Driver*>& GetDriver();

// "CUDA 13.2"
std::string VersionName(int version);

// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string ErrorName(const Driver& driver, CUresult result);

// An error of a driver call, with the call as it is written in the source, and where.
Status DriverError(const Driver& driver, CUresult result, const char* call, const char* file,
                   int line);

// Makes a device's primary context current for its lifetime, unless a context of that device
// already is. XLA and PyTorch both use the primary context. A negative ordinal means the current
// device.
class ScopedDevice {
 public:
  ScopedDevice(const Driver& driver, int ordinal);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  const Status& status() const { return status_; }
  CUdevice device() const { return device_; }

 private:
  Status Enter(int ordinal);

  const Driver& driver_;
  Status status_;
  CUdevice device_ = -1;
  bool retained_ = false, pushed_ = false;
};

// Lets this thread load a kernel while some stream is being captured into a CUDA graph: loading
// touches no stream, but the driver cannot know that and would spoil the capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace jax_ptx::cuda

// Leaves the enclosing function with an error unless the call of a function of `driver` succeeds.
#define JAX_PTX_CUDA(driver, call)                                                            \
  do {                                                                                        \
    if (const CUresult jax_ptx_result = (driver).call; jax_ptx_result != CUDA_SUCCESS)        \
      return ::jax_ptx::cuda::DriverError(driver, jax_ptx_result, #call, __FILE__, __LINE__); \
  } while (false)
