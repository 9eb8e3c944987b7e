// Which registers of a function may stand in the same place of the register file: those that never
// hold, in one thread, a value that may still be read at the same time. Texts that name a register
// for every value have many times the registers that are ever in use.
#pragma once

#include <vector>

#include "ptx/program.h"

namespace jax_ptx::emulator {

struct RegisterSlots {
  std::vector<uint32_t> slot;     // of each register, among those of its size
  uint32_t narrow = 0, wide = 0;  // how many slots of 32 and of 64 bits there are
};
RegisterSlots ShareRegisters(const ptx::Function& function);

}  // namespace jax_ptx::emulator
