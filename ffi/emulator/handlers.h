// The handlers, by family. Each Select returns nullptr for what is not its own or not supported.
#pragma once

#include "emulator/warp.h"

namespace jax_ptx::emulator {

Handler SelectInteger(const ptx::Instruction& instruction);   // integer.cc
Handler SelectBits(const ptx::Instruction& instruction);      // bits.cc
Handler SelectReal(const ptx::Instruction& instruction);      // real.cc: float32 and float64
Handler SelectMixed(const ptx::Instruction& instruction);     // mixed.cc: float32 from halves
Handler SelectHalf(const ptx::Instruction& instruction);      // half.cc: float16 and bfloat16
Handler SelectConvert(const ptx::Instruction& instruction);   // convert.cc
Handler SelectCompare(const ptx::Instruction& instruction);   // compare.cc
Handler SelectMove(const ptx::Instruction& instruction);      // move.cc
Handler SelectMemory(const ptx::Instruction& instruction);    // memory.cc
Handler SelectAtomic(const ptx::Instruction& instruction);    // atomic.cc
Handler SelectExchange(const ptx::Instruction& instruction);  // exchange.cc
Handler SelectControl(const ptx::Instruction& instruction);   // control.cc
Handler SelectBarrier(const ptx::Instruction& instruction);   // barrier.cc
Handler SelectAsync(const ptx::Instruction& instruction);     // async.cc
Handler SelectMatrix(const ptx::Instruction& instruction);    // matrix.cc

// select.cc: the handler of an instruction, and what its step needs besides the operands.
Handler SelectHandler(const ptx::Instruction& instruction);
void FinishStep(const ptx::Instruction& instruction, const ptx::Operand* operands, Step* step);
// Instructions that may have several addresses; each is four arguments: base, is wide, offset low
// and high.
bool IsAsync(ptx::Op op);

// Runs step.inner in the host rounding mode step.value (real.cc).
Outcome RunRounded(Warp& warp, const Step& step, uint32_t mask);
// The host's rounding mode for .rz, .rm, .rp, or -1 for .rn and none.
int HostRounding(const ptx::Instruction& instruction);

// Steps that compile.cc puts in place of an instruction, or beside one (move.cc, control.cc).
Outcome Move32(Warp& warp, const Step& step, uint32_t mask);
Outcome Move64(Warp& warp, const Step& step, uint32_t mask);
Outcome Narrow(Warp& warp, const Step& step, uint32_t mask);  // a 64-bit slot to a 32-bit slot
Outcome Widen(Warp& warp, const Step& step, uint32_t mask);
Outcome WidenSigned(Warp& warp, const Step& step, uint32_t mask);
Outcome ReadClock(Warp& warp, const Step& step, uint32_t mask);
Outcome Call(Warp& warp, const Step& step, uint32_t mask);
Outcome CallUndefined(Warp& warp, const Step& step, uint32_t mask);
Outcome CallPrintf(Warp& warp, const Step& step, uint32_t mask);
Outcome CopyResults(Warp& warp, const Step& step, uint32_t mask);

}  // namespace jax_ptx::emulator
