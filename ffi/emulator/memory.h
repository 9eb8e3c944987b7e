// From addresses to host memory, with every check that is always on.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

enum class Access : uint8_t {
  kRead,
  kWrite,
  kAtomic,
  kMbarrier,  // an operation on an mbarrier object
  kCopyRead,  // by an asynchronous copy
  kCopyWrite,
};
inline bool IsWrite(Access access) {
  return access != Access::kRead && access != Access::kCopyRead;
}

// Host memory of each lane of a mask; lane l's is at `lane[l]`, and, when `stride` is not negative,
// at lane[0] + l · stride for all 32 lanes.
struct Places {
  uint8_t* lane[kLanes];
  int64_t stride = -1;
};

// Finds the places of `bytes` bytes that the step's address operand `arg` (plus step.value) means.
// False: a fault has been recorded.
bool Locate(Warp& warp, const Step& step, uint32_t arg, uint32_t mask, uint32_t bytes,
            Access access, Places* places);

// The same for addresses that are computed already, one for each lane of the mask.
bool LocateLanes(Warp& warp, const Step& step, uint32_t mask, ptx::Space space,
                 const uint64_t* address, uint32_t bytes, Access access, Places* places);

// One lane's address, already computed; nullptr after a fault.
uint8_t* LocateLane(Warp& warp, const Step& step, int lane, ptx::Space space, uint64_t address,
                    uint32_t bytes, Access access);

// One access of the lanes of a mask, checked, for those who observe the run.
struct Touch {
  Access access;
  uint32_t mask;
  uint32_t bytes;
  ptx::Space space;
  const uint64_t* address;  // of each lane
  const Places* places;

  const uint8_t* place(int lane) const {
    return places->stride >= 0 ? places->lane[0] + lane * places->stride : places->lane[lane];
  }
};

// The address that lane `lane` means, from the address operand in args[arg].
uint64_t AddressOf(const Warp& warp, const Step& step, uint32_t arg, int lane);

}  // namespace jax_ptx::emulator
