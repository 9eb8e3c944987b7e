// Floats of eight bits and fewer.
#pragma once

#include "emulator/number.h"

namespace jax_ptx::emulator {

struct SmallFormat : Format {
  uint8_t most;  // the largest finite magnitude
};
constexpr SmallFormat kE4M3{{3, 4, 448}, 0x7E}, kE5M2{{2, 5, 57344}, 0x7B},
    kE2M3{{3, 2, 7.5}, 0x1F}, kE3M2{{2, 3, 28}, 0x1F}, kE2M1{{1, 2, 6}, 0x07};

double FromSmall(uint32_t bits, const SmallFormat& format);

Handler SelectSmall(const ptx::Instruction& instruction);  // cvt from or to a pair of them

}  // namespace jax_ptx::emulator
