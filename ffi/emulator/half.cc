// float16 and bfloat16 arithmetic, scalar and packed (PTX ISA 9.7.4). Operands are exact in
// float64, sums are rounded to odd there, and each result is rounded once.
#include "emulator/handlers.h"
#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

struct Flags {
  bool ftz, sat, relu, nan, xorsign;
};

template <class T>
constexpr uint16_t kInfinity = std::is_same_v<T, F16> ? 0x7C00 : 0x7F80;
template <class T>
bool IsNan(T x) {
  return (x.bits & 0x7FFF) > kInfinity<T>;
}

// min and max pick an operand; the order is that of sign-magnitude integers, −0 below +0.
template <class T>
T Extreme(T a, T b, bool is_max, const Flags& flags) {
  if (flags.nan && (IsNan(a) || IsNan(b))) return {0x7FFF};
  uint16_t sign = flags.xorsign ? (a.bits ^ b.bits) & 0x8000 : 0;
  if (flags.xorsign) a.bits &= 0x7FFF, b.bits &= 0x7FFF;
  if (IsNan(a) && IsNan(b)) return {0x7FFF};
  auto order = [](T x) {
    return x.bits & 0x8000 ? -static_cast<int>(x.bits & 0x7FFF) - 1 : static_cast<int>(x.bits);
  };
  T result = IsNan(a) ? b : IsNan(b) ? a : (order(a) > order(b)) == is_max ? a : b;
  result.bits |= sign;
  return result;
}

template <class T>
T Compute(Op op, T a, T b, T c, const Flags& flags) {
  if (flags.ftz) a = Flush(a), b = Flush(b), c = Flush(c);
  double x = ToDouble(a), y = ToDouble(b);
  double value = 0;
  switch (op) {
    case Op::kAdd:
      value = AddToOdd(x, y);
      break;
    case Op::kSub:
      value = AddToOdd(x, -y);
      break;
    case Op::kMul:
      value = x * y;
      break;
    case Op::kFma:
      value = AddToOdd(x * y, ToDouble(c));
      break;
    case Op::kEx2:
      value = std::exp2(x);
      break;
    case Op::kTanh:
      value = std::tanh(x);
      break;
    case Op::kMin:
    case Op::kMax: {
      T result = Extreme(a, b, op == Op::kMax, flags);
      return result;
    }
    case Op::kAbs:
      a.bits &= 0x7FFF;
      return IsNan(a) ? T{0x7FFF} : a;
    default:  // neg
      a.bits ^= 0x8000;
      return IsNan(a) ? T{0x7FFF} : a;
  }
  // Of .f16 alone: what would round to less than 2^-14 if exponents had no end is flushed.
  if (flags.ftz && std::fabs(value) < 0x1p-14 * (1 - 0x1p-12)) value = std::copysign(0.0, value);
  T result = FromDouble<T>(value);
  if (flags.sat) result = FromDouble<T>(Saturate01(ToDouble(result)));
  if (flags.relu && !IsNan(result) && (result.bits & 0x8000)) result.bits = 0;
  return result;
}

template <class T, bool packed, Op op>
Outcome Run(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  Flags flags{i.Has(Mod::kFtz), i.Has(Mod::kSat), i.Has(Mod::kRelu), i.Has(Mod::kNanMode),
              i.Has(Mod::kXorsign)};
  int last = i.operand_count - 1;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[last < 2 ? last : 2]);
  const auto* c = w.In<uint32_t>(s.args[last < 3 ? last : 3]);
  auto half = [](uint32_t bits) { return T{static_cast<uint16_t>(bits)}; };
  ForLanes(mask, [&](int l) {
    uint32_t result = Compute(op, half(a[l]), half(b[l]), half(c[l]), flags).bits;
    if constexpr (packed) {
      result |=
          uint32_t{Compute(op, half(a[l] >> 16), half(b[l] >> 16), half(c[l] >> 16), flags).bits}
          << 16;
    }
    d[l] = result;
  });
  return Outcome::kNext;
}

template <Op op>
Handler Select(Type type) {
  switch (type) {
    case Type::kF16:
      return Run<F16, false, op>;
    case Type::kF16x2:
      return Run<F16, true, op>;
    case Type::kBF16:
      return Run<BF16, false, op>;
    case Type::kBF16x2:
      return Run<BF16, true, op>;
    default:
      return nullptr;
  }
}

}  // namespace

Handler SelectHalf(const Instruction& i) {
  switch (i.op) {
    case Op::kAdd:
      return Select<Op::kAdd>(i.type[0]);
    case Op::kSub:
      return Select<Op::kSub>(i.type[0]);
    case Op::kMul:
      return Select<Op::kMul>(i.type[0]);
    case Op::kFma:
      return Select<Op::kFma>(i.type[0]);
    case Op::kMin:
      return Select<Op::kMin>(i.type[0]);
    case Op::kMax:
      return Select<Op::kMax>(i.type[0]);
    case Op::kAbs:
      return Select<Op::kAbs>(i.type[0]);
    case Op::kNeg:
      return Select<Op::kNeg>(i.type[0]);
    case Op::kEx2:
      return Select<Op::kEx2>(i.type[0]);
    case Op::kTanh:
      return Select<Op::kTanh>(i.type[0]);
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
