// What the instructions on matrices that a whole warp holds have in common.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// All 32 lanes must execute these together: kNext when they do.
Outcome WholeWarp(Warp& warp, const Step& step, uint32_t mask);

// One element of a matrix, from the low bits of `bits`; every element type is exact in float64.
double ElementFrom(ptx::Type type, uint64_t bits);
// An element of an accumulator, rounded once; integers wrap, or clamp with .satfinite.
uint64_t ElementBits(ptx::Type type, double value, bool satfinite);

Handler SelectMma(const ptx::Instruction& instruction);   // mma.cc
Handler SelectWmma(const ptx::Instruction& instruction);  // wmma.cc

}  // namespace jax_ptx::emulator
