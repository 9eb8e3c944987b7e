// Which family an instruction belongs to, and the constants that a step carries beside its
// operands.
#include "emulator/handlers.h"

namespace jax_ptx::emulator {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

bool IsAsync(Op op) {
  return op == Op::kCpAsync || op == Op::kCpAsyncBulk || op == Op::kCpAsyncMbarrier ||
         op == Op::kMbarrier || op == Op::kMbarrierArrive || op == Op::kMbarrierWait ||
         op == Op::kStAsync || op == Op::kRedAsync || op == Op::kCpReduceBulk || op == Op::kStBulk;
}

Handler SelectHandler(const Instruction& i) {
  using Family = Handler (*)(const Instruction&);
  static constexpr Family kFamilies[] = {SelectControl, SelectMemory,   SelectBits,    SelectMove,
                                         SelectCompare, SelectExchange, SelectBarrier, SelectAtomic,
                                         SelectAsync,   SelectMatrix,   SelectMixed};
  if (i.op == Op::kCvt) return SelectConvert(i);
  for (Family family : kFamilies) {
    if (Handler handler = family(i)) return handler;
  }
  // Arithmetic: the first type decides.
  Handler inner = i.type[0] == Type::kF32 || i.type[0] == Type::kF64 || i.type[0] == Type::kF32x2
                      ? SelectReal(i)
                  : ptx::IsFloat(i.type[0]) ? SelectHalf(i)
                                            : SelectInteger(i);
  return inner;
}

void FinishStep(const Instruction& i, const ptx::Operand* operands, Step* step) {
  switch (i.op) {
    case Op::kSetp:
      step->value = 2;  // behind p and q
      break;
    case Op::kSet:
      step->value = 1;
      break;
    case Op::kMov:
      step->value = i.type[0] == Type::kPred && operands[1].kind == ptx::Operand::Kind::kSpecial;
      break;
    case Op::kLop3:
      step->value = static_cast<uint64_t>(operands[3 + i.destination_count].value) & 0xFF;
      break;
    case Op::kPrmt:
      step->value = static_cast<uint64_t>(
          i.Pick(Mod::kCount, Mod::kF4e, Mod::kB4e, Mod::kRc8, Mod::kEcl, Mod::kEcr, Mod::kRc16));
      break;
    case Op::kCpAsync:
      // The fourth operand: nothing or a cache policy, the source's size, or whether to leave it
      // out.
      step->target = i.operand_count == 3 || ptx::Bits(operands[3].type) == 64 ? 0
                     : operands[3].type == Type::kPred                         ? 2
                                                                               : 1;
      break;
    case Op::kAddc:
    case Op::kSubc:
      // addc, subc and madc read the carry that add.cc, sub.cc and mad.cc write.
      step->value = i.text.size() > 3 && i.text[3] == 'c';
      break;
    case Op::kCvta:
      if (i.Has(Mod::kShared) || i.Has(Mod::kSharedCta) || i.Has(Mod::kSharedCluster)) {
        step->value = kSharedSlot << kSlotBits;
      } else if (i.Has(Mod::kLocal)) {
        step->value = kLocalSlot << kSlotBits;
      }
      break;
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kFma:
    case Op::kDiv:
    case Op::kRcp:
    case Op::kSqrt:
    case Op::kCvt: {
      int rounding = HostRounding(i);
      bool is_real =
          i.type[0] == Type::kF32 || i.type[0] == Type::kF64 || i.type[0] == Type::kF32x2;
      if (rounding < 0 || !is_real) break;
      step->inner = step->run;
      step->run = RunRounded;
      step->value = static_cast<uint64_t>(rounding);
      break;
    }
    default:
      break;
  }
}

}  // namespace jax_ptx::emulator
