// float32 and float64 arithmetic (PTX ISA 9.7.3). Every operation rounds once; approximations are
// computed in float64 and rounded once, which is within the ISA's bounds.
#include <cfenv>

#include "emulator/handlers.h"
#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

#define UNARY(name, expression) \
  struct name {                 \
    template <class T>          \
    static T Of(T a) {          \
      return expression;        \
    }                           \
  };
#define BINARY(name, expression) \
  struct name {                  \
    template <class T>           \
    static T Of(T a, T b) {      \
      return expression;         \
    }                            \
  };
#define APPROXIMATION(name, expression)  \
  struct name {                          \
    template <class T>                   \
    static T Of(T x) {                   \
      double a = x;                      \
      return static_cast<T>(expression); \
    }                                    \
  };

BINARY(Add, a + b)
BINARY(Sub, a - b)
BINARY(Mul, a* b)
BINARY(Div, a / b)
UNARY(Rcp, T{1} / a)
UNARY(Sqrt, std::sqrt(a))
APPROXIMATION(Rsqrt, 1.0 / std::sqrt(a))
APPROXIMATION(Sin, std::sin(a))
APPROXIMATION(Cos, std::cos(a))
APPROXIMATION(Lg2, std::log2(a))
APPROXIMATION(Ex2, std::exp2(a))
APPROXIMATION(Tanh, std::tanh(a))
struct Fused {  // rounded once
  static float Of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double Of(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
struct DivFull {
  template <class T>
  static T Of(T a, T b) {
    return static_cast<T>(static_cast<double>(a) / static_cast<double>(b));
  }
};
struct DivApprox {  // the reciprocal of a divisor beyond 2^126 is zero
  template <class T>
  static T Of(T a, T b) {
    return std::fabs(b) > T(0x1p126) ? a * std::copysign(T{0}, b) : DivFull::Of(a, b);
  }
};

template <class T>
bool IsNegative(T x) {
  return BitCast<Bits<sizeof(T)>>(x) >> (8 * sizeof(T) - 1);
}
template <class T>
T AllOnesNan() {
  return BitCast<T>(static_cast<Bits<sizeof(T)>>(~Bits<sizeof(T)>{0} >> 1));
}
template <class T>
T Quiet(T x) {
  return x != x ? x + x : x;
}
// A NaN loses against a number, and −0 is smaller than +0.
struct Min {
  template <class T>
  static T Of(T a, T b) {
    if (a != a) return Quiet(b);
    if (b != b) return a;
    return a < b || (a == b && IsNegative(a)) ? a : b;
  }
};
struct Max {
  template <class T>
  static T Of(T a, T b) {
    if (a != a) return Quiet(b);
    if (b != b) return a;
    return a > b || (a == b && !IsNegative(a)) ? a : b;
  }
};
template <class F>
struct WithNan {  // .NaN: a NaN wins
  template <class T>
  static T Of(T a, T b) {
    return a != a || b != b ? AllOnesNan<T>() : F::Of(a, b);
  }
};
template <class F>
struct XorSign {  // .xorsign.abs
  template <class T>
  static T Of(T a, T b) {
    T magnitude = F::Of(std::fabs(a), std::fabs(b));
    return IsNegative(a) != IsNegative(b) ? -magnitude : magnitude;
  }
};

// Whether .ftz flushes a result that was rounded to 2^-126: it does if it would have been less,
// rounded as if exponents had no end.
bool RoundsToLess(double exact) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  double size = std::fabs(exact);
  return std::fegetround() == FE_TONEAREST ? size < kLeast * (1 - 0x1p-25)
                                           : size <= kLeast * (1 - 0x1p-24);
}
// The result in float64, for what can be inexact there: sums of two are not.
template <class F, class... Operands>
double InDouble(Operands... x) {
  if constexpr (std::is_same_v<F, Mul> || std::is_same_v<F, Div> || std::is_same_v<F, Rcp>) {
    return F::Of(static_cast<double>(x)...);
  }
  return std::numeric_limits<float>::min();
}
template <>
double InDouble<Fused>(float a, float b, float c) {
  double product = static_cast<double>(a) * b;
  bool is_nearest = std::fegetround() == FE_TONEAREST;
  return is_nearest ? AddToOdd(product, c) : product + c;
}

// What surrounds an operation: flushed operands and result, clamping, the canonical NaN.
template <class T, class F, bool ftz, bool sat>
struct Around {
  static T In(T x) { return ftz ? Flush(x) : x; }
  static T Out(T x) {
    if (ftz) x = Flush(x);
    return sat ? Saturate01(x) : Canonical(x);
  }
  template <class... Operands>
  __attribute__((always_inline)) static T Apply(Operands... operands) {
    T x = F::Of(In(operands)...);
    if (ftz && std::fabs(x) == std::numeric_limits<T>::min() &&
        RoundsToLess(InDouble<F>(In(operands)...))) {
      x = std::copysign(T{0}, x);
    }
    return Out(x);
  }
};

template <class F>
Handler Select1(const Instruction& i) {
  if (i.type[0] == Type::kF64) return Unary<double, double, Around<double, F, false, false>>;
  if (i.Has(Mod::kFtz)) return Unary<float, float, Around<float, F, true, false>>;
  return Unary<float, float, Around<float, F, false, false>>;
}
template <class F>
Handler Select2(const Instruction& i) {
  using D = double;
  using S = float;
  if (i.type[0] == Type::kF64) return Binary<D, D, D, Around<D, F, false, false>>;
  if (i.Has(Mod::kFtz)) {
    return i.Has(Mod::kSat) ? Binary<S, S, S, Around<S, F, true, true>>
                            : Binary<S, S, S, Around<S, F, true, false>>;
  }
  return i.Has(Mod::kSat) ? Binary<S, S, S, Around<S, F, false, true>>
                          : Binary<S, S, S, Around<S, F, false, false>>;
}
template <class F>
Handler SelectExtreme(const Instruction& i) {
  if (i.Has(Mod::kXorsign)) {
    return i.Has(Mod::kNanMode) ? Select2<WithNan<XorSign<F>>>(i) : Select2<XorSign<F>>(i);
  }
  return i.Has(Mod::kNanMode) ? Select2<WithNan<F>>(i) : Select2<F>(i);
}

template <class T, bool ftz, bool sat>
inline __attribute__((always_inline)) void FmaLanes(Warp& w, const Step& s, uint32_t mask) {
  using A = Around<T, Fused, ftz, sat>;
  auto* d = w.Out<Slot<T>>(s.args[0]);
  const auto* a = w.In<Slot<T>>(s.args[1]);
  const auto* b = w.In<Slot<T>>(s.args[2]);
  const auto* c = w.In<Slot<T>>(s.args[3]);
  ForLanes(mask, [=](int l) { Put<T>(d, l, A::Apply(Get<T>(a, l), Get<T>(b, l), Get<T>(c, l))); });
}
template <class T, bool ftz, bool sat>
Outcome Fma(Warp& w, const Step& s, uint32_t mask) {
  FmaLanes<T, ftz, sat>(w, s, mask);  // the C library's, exact with or without hardware
  return Outcome::kNext;
}
#if defined(__x86_64__) && defined(__GNUC__)
template <class T, bool ftz, bool sat>
__attribute__((target("avx2,fma"))) Outcome HardwareFma(Warp& w, const Step& s, uint32_t mask) {
  FmaLanes<T, ftz, sat>(w, s, mask);
  return Outcome::kNext;
}
template <class T, bool ftz, bool sat>
Handler ChooseFma() {
  static const bool has_fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
  return has_fma ? HardwareFma<T, ftz, sat> : Fma<T, ftz, sat>;
}
#else
template <class T, bool ftz, bool sat>
Handler ChooseFma() {
  return Fma<T, ftz, sat>;
}
#endif

Handler SelectFma(const Instruction& i) {
  if (i.type[0] == Type::kF64) return ChooseFma<double, false, false>();
  if (i.Has(Mod::kFtz)) {
    return i.Has(Mod::kSat) ? ChooseFma<float, true, true>() : ChooseFma<float, true, false>();
  }
  return i.Has(Mod::kSat) ? ChooseFma<float, false, true>() : ChooseFma<float, false, false>();
}

// The hardware keeps a float64 NaN as it is, quiet and with its sign.
template <class T, bool ftz>
struct AbsBits {
  static T Apply(T a) { return a != a ? Canonical(Quiet(a)) : std::fabs(ftz ? Flush(a) : a); }
};
template <class T, bool ftz>
struct NegBits {
  static T Apply(T a) { return a != a ? Canonical(Quiet(a)) : -(ftz ? Flush(a) : a); }
};
template <class T>
struct Copysign {  // copysign d, a, b: the sign of a on b
  static T Apply(T a, T b) { return std::copysign(b, a); }
};
// rcp.approx.ftz.f64 and its like take and return the high 32 bits, and have one NaN.
template <class F>
struct Gross {
  static double Apply(double a) {
    constexpr uint64_t kHigh = 0xFFFFFFFF00000000;
    a = BitCast<double>(BitCast<uint64_t>(a) & kHigh);
    double flushed = std::fabs(a) < std::numeric_limits<double>::min() ? std::copysign(0.0, a) : a;
    double result = F::Of(flushed);
    uint64_t bits = result == result ? BitCast<uint64_t>(result) : ~uint64_t{0} >> 1;
    return BitCast<double>(bits & kHigh);
  }
};

// .f32x2: two float32 in a 64-bit register.
template <class F, bool ftz>
Outcome Pairs(Warp& w, const Step& s, uint32_t mask) {
  using A = Around<float, F, ftz, false>;
  auto* d = w.Out<uint64_t>(s.args[0]);
  const auto* a = w.In<uint64_t>(s.args[1]);
  const auto* b = w.In<uint64_t>(s.args[2]);
  const auto* c = w.In<uint64_t>(s.args[std::is_same_v<F, Fused> ? 3 : 2]);
  auto half = [&](int l, int shift) -> uint64_t {
    auto part = [=](const uint64_t* x) {
      return BitCast<float>(static_cast<uint32_t>(x[l] >> shift));
    };
    if constexpr (std::is_same_v<F, Fused>) {
      return BitCast<uint32_t>(A::Apply(part(a), part(b), part(c)));
    } else {
      return BitCast<uint32_t>(A::Apply(part(a), part(b)));
    }
  };
  ForLanes(mask, [&](int l) { d[l] = half(l, 32) << 32 | half(l, 0); });
  return Outcome::kNext;
}
template <class F>
Handler SelectPairs(const Instruction& i) {
  return i.Has(Mod::kFtz) ? Pairs<F, true> : Pairs<F, false>;
}

Handler SelectUnary(const Instruction& i, bool is_wide) {
  bool ftz = i.Has(Mod::kFtz);
  switch (i.op) {
    case Op::kAbs:
      if (is_wide) return Unary<double, double, AbsBits<double, false>>;
      return ftz ? Unary<float, float, AbsBits<float, true>>
                 : Unary<float, float, AbsBits<float, false>>;
    case Op::kNeg:
      if (is_wide) return Unary<double, double, NegBits<double, false>>;
      return ftz ? Unary<float, float, NegBits<float, true>>
                 : Unary<float, float, NegBits<float, false>>;
    case Op::kRcp:
      return is_wide && i.Has(Mod::kApprox) ? Unary<double, double, Gross<Rcp>> : Select1<Rcp>(i);
    case Op::kSqrt:
      return Select1<Sqrt>(i);
    case Op::kRsqrt:
      return is_wide && ftz ? Unary<double, double, Gross<Rsqrt>> : Select1<Rsqrt>(i);
    case Op::kSin:
      return Select1<Sin>(i);
    case Op::kCos:
      return Select1<Cos>(i);
    case Op::kLg2:
      return Select1<Lg2>(i);
    case Op::kEx2:
      return Select1<Ex2>(i);
    case Op::kTanh:
      return Select1<Tanh>(i);
    default:
      return nullptr;
  }
}

}  // namespace

int HostRounding(const Instruction& i) {
  switch (i.Pick(Mod::kRn, Mod::kRz, Mod::kRm, Mod::kRp)) {
    case Mod::kRz:
      return FE_TOWARDZERO;
    case Mod::kRm:
      return FE_DOWNWARD;
    case Mod::kRp:
      return FE_UPWARD;
    default:
      return -1;
  }
}

// fesetround is an opaque call: the lanes are read behind it and written before the next one.
Outcome RunRounded(Warp& w, const Step& s, uint32_t mask) {
  std::fesetround(static_cast<int>(s.value));
  Outcome outcome = s.inner(w, s, mask);
  std::fesetround(FE_TONEAREST);
  return outcome;
}

Handler SelectReal(const Instruction& i) {
  bool is_wide = i.type[0] == Type::kF64;
  if (i.type[0] == Type::kF32x2) {
    return i.op == Op::kAdd   ? SelectPairs<Add>(i)
           : i.op == Op::kSub ? SelectPairs<Sub>(i)
           : i.op == Op::kMul ? SelectPairs<Mul>(i)
           : i.op == Op::kFma ? SelectPairs<Fused>(i)
                              : nullptr;
  }
  if (!is_wide && i.type[0] != Type::kF32) return nullptr;
  switch (i.op) {
    case Op::kAdd:
      return Select2<Add>(i);
    case Op::kSub:
      return Select2<Sub>(i);
    case Op::kMul:
      return Select2<Mul>(i);
    case Op::kDiv:
      if (i.Has(Mod::kApprox)) return Select2<DivApprox>(i);
      return i.Has(Mod::kFull) ? Select2<DivFull>(i) : Select2<Div>(i);
    case Op::kMin:
      return SelectExtreme<Min>(i);
    case Op::kMax:
      return SelectExtreme<Max>(i);
    case Op::kFma:
      return SelectFma(i);
    case Op::kCopysign:
      return is_wide ? Binary<double, double, double, Copysign<double>>
                     : Binary<float, float, float, Copysign<float>>;
    default:
      return SelectUnary(i, is_wide);
  }
}

}  // namespace jax_ptx::emulator
