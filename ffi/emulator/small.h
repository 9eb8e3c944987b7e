// Floats of eight bits and fewer.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

struct SmallFormat {
  int exponent, mantissa;  // bits
  uint8_t most;            // the largest finite magnitude
  uint8_t nan;             // where there is none, NaN becomes the largest value
};
constexpr SmallFormat kE4M3{4, 3, 0x7E, 0x7F}, kE5M2{5, 2, 0x7B, 0x7F}, kE2M3{2, 3, 0x1F, 0x1F},
    kE3M2{3, 2, 0x1F, 0x1F}, kE2M1{2, 1, 0x07, 0x07};

// Rounds once, to nearest even; what is too large becomes the largest finite value.
uint8_t ToSmall(double value, const SmallFormat& format);
double FromSmall(uint32_t bits, const SmallFormat& format);

Handler SelectSmall(const ptx::Instruction& instruction);  // cvt from or to a pair of them

}  // namespace jax_ptx::emulator
