// A stand-in for libcuda.so.1 that launches nothing: it writes each call that matters to the file
// named by FAKE_CUDA_LOG. What it refuses is steered by words in the PTX text and by the
// environment.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

struct CUkern_st {
  std::string name;
  std::vector<size_t> parameter_bytes;
  int max_dynamic_smem = 48 << 10;
};
struct CUlib_st {
  std::string text;
  CUkern_st kernel;
};

namespace {

int Setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

template <class... Args>
void Log(const char* format, Args... args) {
  const char* path = std::getenv("FAKE_CUDA_LOG");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  std::fprintf(file, format, args...);
  std::fclose(file);
}

thread_local std::vector<CUdevice> contexts;

CUcontext ToContext(CUdevice device) { return reinterpret_cast<CUcontext>(device + 1l); }

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return static_cast<CUresult>(Setting("FAKE_CUDA_INIT", CUDA_SUCCESS)); }
CUresult cuDriverGetVersion(int* version) {
  *version = Setting("FAKE_CUDA_VERSION", 13000);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_INVALID_PTX               ? "CUDA_ERROR_INVALID_PTX"
          : result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : result == CUDA_ERROR_NO_DEVICE               ? "CUDA_ERROR_NO_DEVICE"
          : result == CUDA_ERROR_LAUNCH_FAILED           ? "CUDA_ERROR_LAUNCH_FAILED"
          : result == CUDA_ERROR_NO_BINARY_FOR_GPU       ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                                                         : nullptr;
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult, const char** words) {
  *words = "words of the driver";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 2;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, size, "Fake GPU");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const int capability = Setting("FAKE_CUDA_CAPABILITY", 90);
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
                                                                       : 101376;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Log("retain %d\n", device);
  *context = ToContext(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Log("release %d\n", device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(static_cast<CUdevice>(reinterpret_cast<intptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = ToContext(contexts.back());
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options,
                           void** values, unsigned n_options, CUlibraryOption*, void**, unsigned) {
  const std::string text = static_cast<const char*>(code);
  Log("load %zu\n", text.size());
  if (text.find("syntax error") != text.npos) {
    for (unsigned i = 0; i < n_options; ++i) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
        std::strcpy(static_cast<char*>(values[i]), "ptxas line 7; unknown instruction");
      }
    }
    return CUDA_ERROR_INVALID_PTX;
  }
  if (text.find(".version 99") != text.npos) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  *library = new CUlib_st{text, {}};
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) {
  Log("unload\n");
  delete library;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const std::string& text = library->text;
  if (text.find(std::string(".entry ") + name + "(") == text.npos) return CUDA_ERROR_NOT_FOUND;
  for (size_t at = 0; (at = text.find(".param .", at)) != text.npos; ++at) {
    library->kernel.parameter_bytes.push_back(text.compare(at + 8, 3, "u64") == 0 ? 8 : 4);
  }
  library->kernel.name = name;
  *kernel = &library->kernel;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  Log("ready %s on %d\n", kernel->name.c_str(), contexts.back());
  *function = reinterpret_cast<CUfunction>(kernel);
  return Setting("FAKE_CUDA_CAPABILITY", 90) < 80 ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 512 : 1024;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    kernel->max_dynamic_smem = value;
    Log("smem %d on %d\n", value, device);
  }
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  if (index >= kernel->parameter_bytes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 8 * index;
  *bytes = kernel->parameter_bytes[index];
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void**) {
  const CUkernel kernel = reinterpret_cast<CUkernel>(function);
  std::string rest;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& cluster = config->attrs[i].value.clusterDim;
    rest += " cluster " + std::to_string(cluster.x) + " " + std::to_string(cluster.y) + " " +
            std::to_string(cluster.z);
  }
  rest += " parameters";
  for (size_t i = 0; i < kernel->parameter_bytes.size(); ++i) {
    rest += " " + std::to_string(*static_cast<uint64_t*>(parameters[i]));
  }
  Log("launch %s on %d grid %u %u %u block %u %u %u smem %u stream %zu%s\n", kernel->name.c_str(),
      contexts.back(), config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
      config->blockDimY, config->blockDimZ, config->sharedMemBytes,
      reinterpret_cast<size_t>(config->hStream), rest.c_str());
  if (config->sharedMemBytes > static_cast<unsigned>(kernel->max_dynamic_smem)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return kernel->name == "fails" ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  Log("memset %llu %d %zu stream %zu\n", address, value, bytes, reinterpret_cast<size_t>(stream));
  return CUDA_SUCCESS;
}

}  // extern "C"
