// A kernel loaded from PTX text, and what each device allows it.
#pragma once

#include <atomic>
#include <memory>

#include "cuda/driver.h"
#include "launch.h"
#include "status.h"

namespace jax_ptx::cuda {

// A CUkernel belongs to no device or context: one load serves all.
class Program {
 public:
  // `device`, whose context is current, is only named in errors.
  static Result<std::unique_ptr<const Program>> Load(const Driver& driver,
                                                     const LaunchRecord& record, int device);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Compares the record's parameters and launch with this kernel on `device`, whose context is
  // current. The first check on a device makes the kernel ready there; later ones call no driver.
  Status Check(const LaunchRecord& record, int device) const;

  CUkernel kernel() const { return kernel_; }

 private:
  // The driver may compile lazily and then writes here later, so the buffers live as long as the
  // library.
  struct JitLog {
    char error[16384] = "";
    char info[4096] = "";
  };
  struct DeviceState {
    std::atomic<int> block_threads{0};       // at most; 0 until the kernel is ready
    std::atomic<int> dynamic_smem_bytes{0};  // at most, as the kernel is set up
    std::atomic<bool> clusters{false};
  };

  explicit Program(const Driver& driver) : driver_(driver) {}
  Status LoadLibrary(const LaunchRecord& record, int device);
  Status ReadParameters(const LaunchRecord& record);
  Status Prepare(const LaunchRecord& record, int device) const;
  Status RaiseSmem(const LaunchRecord& record, int device) const;
  Status LoadError(const LaunchRecord& record, int device, const char* function,
                   CUresult result) const;

  const Driver& driver_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  size_t n_parameters_ = 0;
  std::unique_ptr<JitLog> log_ = std::make_unique<JitLog>();
  std::unique_ptr<DeviceState[]> devices_;
};

}  // namespace jax_ptx::cuda
