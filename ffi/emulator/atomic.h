// What atom, red and their asynchronous relatives do to one element of memory.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// Combines the element with a (.cas: puts b where it is a), atomically; returns its old bits.
using Update = uint64_t (*)(uint8_t* place, uint64_t a, uint64_t b);

// Of an instruction's operation and first type.
Update SelectUpdate(const ptx::Instruction& instruction, bool is_shared);

}  // namespace jax_ptx::emulator
