// float32 arithmetic of recent targets: add, sub and fma whose first operands are halves, and min
// and max of three.
#include "emulator/handlers.h"
#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

// d = a + c, a − c or a · b + c with a and b halves. The sum is the float32's of RunRounded.
template <class H>
Outcome Sum(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool is_fma = i.op == Op::kFma, sat = i.Has(Mod::kSat), is_sub = i.op == Op::kSub;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[is_fma ? 3 : 2]);
  ForLanes(mask, [=](int l) {
    float x = ToFloat(Get<H>(a, l)), z = BitCast<float>(c[l]);
    float sum = is_fma ? std::fma(x, ToFloat(Get<H>(b, l)), z) : is_sub ? x - z : x + z;
    Put<float>(d, l, sat ? Saturate01(sum) : Canonical(sum));
  });
  return Outcome::kNext;
}

Outcome ExtremeOfThree(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool is_max = i.op == Op::kMax, ftz = i.Has(Mod::kFtz), abs = i.Has(Mod::kAbs);
  bool nan_wins = i.Has(Mod::kNanMode);
  auto prepared = [=](uint32_t bits) {
    float x = BitCast<float>(abs ? bits & 0x7FFFFFFF : bits);
    return ftz ? Flush(x) : x;
  };
  // −0 is smaller than +0.
  auto pick = [=](float x, float y) {
    if (x != x || y != y) return nan_wins ? x + y : x != x ? y : x;
    bool is_below = x < y || (x == y && std::signbit(x));
    return is_below != is_max ? x : y;
  };
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[3]);
  ForLanes(mask, [=](int l) {
    float value = pick(pick(prepared(a[l]), prepared(b[l])), prepared(c[l]));
    Put<float>(d, l, Canonical(value));
  });
  return Outcome::kNext;
}

}  // namespace

Handler SelectMixed(const Instruction& i) {
  if (i.type[0] != Type::kF32) return nullptr;
  bool is_extreme = i.op == Op::kMin || i.op == Op::kMax;
  if (is_extreme) return i.operand_count == 4 ? ExtremeOfThree : nullptr;
  bool is_sum = i.op == Op::kAdd || i.op == Op::kSub || i.op == Op::kFma;
  if (!is_sum) return nullptr;
  return i.type[1] == Type::kF16 ? Sum<F16> : i.type[1] == Type::kBF16 ? Sum<BF16> : nullptr;
}

}  // namespace jax_ptx::emulator
