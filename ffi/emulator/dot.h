// Sums of products as an H200 adds them. The ISA leaves their order and their rounding open.
#pragma once

#include "ptx/types.h"

namespace jax_ptx::emulator {

constexpr int kMaxM = 16, kMaxK = 256, kN = 8;

struct Factors {
  double a[kMaxM][kMaxK], b[kMaxK][kN], c[kMaxM][kN];
};

// C += A · B for an mma of floats, A m × k. Every element of C is left exact in the type of D.
void MultiplyFloats(ptx::Type type_d, ptx::Type type_a, int m, int k, Factors* x);
// The same for mma.m8n8k4 of float16.
void MultiplyOneByOne(ptx::Type type_d, Factors* x);

}  // namespace jax_ptx::emulator
