// What mbarrier and the instructions that complete on one have in common.
#pragma once

#include <string>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Arguments of an address: base, is wide, offset low and high.
constexpr uint32_t kAddressArgs = 4;
uint64_t AsyncAddress(const Warp& warp, const uint32_t* args, int lane);

// The mbarrier at a shared address; nullptr after a fault.
uint8_t* FindMbarrier(Warp& warp, const Step& step, int lane, uint64_t address, bool must_be_valid);
// Adds to the bytes that its phase waits for; false after a fault.
bool AddBytes(Warp& warp, const Step& step, int lane, uint8_t* mbarrier, int64_t bytes);
// What the mbarrier is in, of a step that waits for it: for the report of a deadlock.
std::string DescribeMbarrier(const Warp& warp, const Step& step, int lane);

Handler SelectBulk(const ptx::Instruction& instruction);  // bulk.cc

}  // namespace jax_ptx::emulator
