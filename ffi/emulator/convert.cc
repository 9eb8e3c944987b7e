// cvt (PTX ISA 9.7.9.21). Every number type is exact in a wide one, so a conversion is: widen, then
// narrow once.
#include "emulator/handlers.h"
#include "emulator/number.h"
#include "emulator/small.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Type;

template <class T>
constexpr bool kIsFloat =
    std::is_same_v<T, F16> || std::is_same_v<T, BF16> || std::is_floating_point_v<T>;

Rounding RoundingOf(const Instruction& i) {
  switch (
      i.Pick(Mod::kRn, Mod::kRz, Mod::kRzi, Mod::kRm, Mod::kRmi, Mod::kRp, Mod::kRpi, Mod::kRna)) {
    case Mod::kRz:
    case Mod::kRzi:
      return Rounding::kZero;
    case Mod::kRm:
    case Mod::kRmi:
      return Rounding::kDown;
    case Mod::kRp:
    case Mod::kRpi:
      return Rounding::kUp;
    case Mod::kRna:
      return Rounding::kNearestAway;
    default:
      return Rounding::kNearestEven;
  }
}

double ToIntegral(double x, Rounding rounding) {
  if (x != x) return x + x;  // quiet
  switch (rounding) {
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

// Integers: `sat` clamps to the destination's range, otherwise the low bits are kept.
template <class D, class S, bool sat>
struct IntegerToInteger {
  static D Apply(S a) {
    if constexpr (sat) {
      using Limits = std::numeric_limits<D>;
      __int128 wide = a;
      if (wide < static_cast<__int128>(Limits::min())) return Limits::min();
      if (wide > static_cast<__int128>(Limits::max())) return Limits::max();
    }
    return static_cast<D>(a);
  }
};

// The nearest value that there is. NaN gives 0, or the highest bit where either type has 64 bits.
template <class D, class S>
D ClampToInteger(double x) {
  using Limits = std::numeric_limits<D>;
  if (x != x) {
    constexpr bool is_wide = sizeof(D) == 8 || sizeof(S) == 8;
    return is_wide ? static_cast<D>(Bits<sizeof(D)>{1} << (8 * sizeof(D) - 1)) : D{0};
  }
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<D>(x);
}

template <class D, class S>
Outcome FloatToInteger(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<S>>(s.args[1]);
  Rounding rounding = RoundingOf(*s.source);
  bool ftz = s.source->Has(Mod::kFtz) && sizeof(S) == 4;
  ForLanes(mask, [=](int l) {
    double x = ToDouble(Get<S>(a, l));
    if (ftz) x = Flush(static_cast<float>(x));
    Put<D>(d, l, ClampToInteger<D, S>(ToIntegral(x, rounding)));
  });
  return Outcome::kNext;
}

// A 64-bit integer as a double that rounds to at most 50 bits like the integer itself.
template <class S>
double ToOdd(S value) {
  if constexpr (sizeof(S) < 8) {
    return value;
  } else {
    bool is_negative = std::is_signed_v<S> && value < 0;
    uint64_t magnitude =
        is_negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    double wide = static_cast<double>(magnitude >> 11) * 2048.0;
    if (magnitude >> 53 == 0)
      wide = static_cast<double>(magnitude);
    else if (magnitude & 2047)
      wide = BitCast<double>(BitCast<uint64_t>(wide) | 1);
    return is_negative ? -wide : wide;
  }
}

template <class D, class S>
Outcome IntegerToFloat(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<S>>(s.args[1]);
  Rounding rounding = RoundingOf(*s.source);
  bool sat = s.source->Has(Mod::kSat);
  ForLanes(mask, [=](int l) {
    if constexpr (std::is_floating_point_v<D>) {
      // The host's conversion rounds once, in the mode that RunRounded has set.
      D value = static_cast<D>(Get<S>(a, l));
      Put<D>(d, l, sat ? Saturate01(value) : value);
    } else {
      double value = ToOdd(Get<S>(a, l));
      Put<D>(d, l, FromDouble<D>(sat ? Saturate01(value) : value, rounding));
    }
  });
  return Outcome::kNext;
}

// A float64's NaN stays what it is, quiet, as far as it fits; every other becomes canonical.
double WideNan(F16 x) {
  uint64_t payload = uint64_t{x.bits & 0x3FFu} << 42, sign = uint64_t{x.bits & 0x8000u} << 48;
  return BitCast<double>(sign | 0x7FF8000000000000 | payload);
}
template <class D>
D CutNan(double x) {
  if constexpr (std::is_floating_point_v<D>) {
    return static_cast<D>(x);
  } else {
    constexpr int kMantissa = std::is_same_v<D, F16> ? 10 : 7;
    uint64_t bits = BitCast<uint64_t>(x), payload = bits << 12 >> (64 - kMantissa);
    uint64_t quiet_nan = (0x7FFF >> (kMantissa - 1) << (kMantissa - 1)) & 0x7FFF;
    return {static_cast<uint16_t>((bits >> 48 & 0x8000) | quiet_nan | payload)};
  }
}

template <class D, class S>
Outcome FloatToFloat(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<S>>(s.args[1]);
  const Instruction& i = *s.source;
  Rounding rounding = RoundingOf(i);
  bool integral = i.Has(Mod::kRni) || i.Has(Mod::kRzi) || i.Has(Mod::kRmi) || i.Has(Mod::kRpi);
  bool ftz = i.Has(Mod::kFtz), sat = i.Has(Mod::kSat), relu = i.Has(Mod::kRelu);
  bool satfinite = i.Has(Mod::kSatfinite);
  ForLanes(mask, [=](int l) {
    S source = Get<S>(a, l);
    double x = ToDouble(source);
    // The hardware does not flush what becomes an f16, though the ISA says so.
    if constexpr (std::is_same_v<S, float> && !std::is_same_v<D, F16>) {
      if (ftz) x = Canonical(Flush(source));
    }
    if (integral) x = ToIntegral(x, rounding);
    if (sat) x = Saturate01(x);
    if (relu && x <= 0) x = 0;
    if constexpr (std::is_same_v<S, F16> && std::is_same_v<D, double>) {
      if (x != x) x = WideNan(source);
    }
    if constexpr (std::is_same_v<S, double>) {
      if (x != x) return Put<D>(d, l, CutNan<D>(x));
    }
    if constexpr (std::is_floating_point_v<D>) {
      D value = static_cast<D>(x);
      if (ftz && sizeof(D) == 4) value = Flush(value);
      Put<D>(d, l, Canonical(value));
    } else {
      constexpr double kLargest = std::is_same_v<D, F16> ? 65504.0 : 0x1.FEp127;
      if (satfinite && x == x) x = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
      Put<D>(d, l, FromDouble<D>(x, rounding));
    }
  });
  return Outcome::kNext;
}

struct Identity {
  static uint32_t Apply(uint32_t a) { return a; }
};
struct FloatToF16 {
  static F16 Apply(float a) { return NearestF16(a); }
};
struct FloatToBF16 {
  static BF16 Apply(float a) { return NearestBF16(a); }
};
template <class T>
struct HalfToFloat {
  static float Apply(T a) { return ToFloat(a); }
};

template <class D, class S>
Handler Pair(const Instruction& i) {
  if constexpr (!kIsFloat<D> && !kIsFloat<S>) {
    return i.Has(Mod::kSat) ? Unary<D, S, IntegerToInteger<D, S, true>>
                            : Unary<D, S, IntegerToInteger<D, S, false>>;
  } else if constexpr (!kIsFloat<D>) {
    return FloatToInteger<D, S>;
  } else if constexpr (!kIsFloat<S>) {
    return IntegerToFloat<D, S>;
  } else {
    // The common conversions have loops that vectorise.
    bool is_plain = !i.Has(Mod::kSat) && !i.Has(Mod::kRelu) && !i.Has(Mod::kSatfinite) &&
                    !i.Has(Mod::kFtz) && RoundingOf(i) == Rounding::kNearestEven;
    if constexpr (std::is_same_v<D, F16> && std::is_same_v<S, float>) {
      if (is_plain) return Unary<F16, float, FloatToF16>;
    }
    if constexpr (std::is_same_v<D, BF16> && std::is_same_v<S, float>) {
      if (is_plain) return Unary<BF16, float, FloatToBF16>;
    }
    bool is_integral = i.Has(Mod::kRni) || i.Has(Mod::kRzi) || i.Has(Mod::kRmi) || i.Has(Mod::kRpi);
    if constexpr (std::is_same_v<D, float> && std::is_same_v<S, float>) {
      if (is_plain && !is_integral) return Unary<uint32_t, uint32_t, Identity>;
    }
    if constexpr (std::is_same_v<D, float> && sizeof(S) == 2) {
      if (is_plain) return Unary<float, S, HalfToFloat<S>>;
    }
    return FloatToFloat<D, S>;
  }
}

template <class D>
Handler WithSource(const Instruction& i) {
  switch (i.type[1]) {
    case Type::kU8:
      return Pair<D, uint8_t>(i);
    case Type::kU16:
      return Pair<D, uint16_t>(i);
    case Type::kU32:
      return Pair<D, uint32_t>(i);
    case Type::kU64:
      return Pair<D, uint64_t>(i);
    case Type::kS8:
      return Pair<D, int8_t>(i);
    case Type::kS16:
      return Pair<D, int16_t>(i);
    case Type::kS32:
      return Pair<D, int32_t>(i);
    case Type::kS64:
      return Pair<D, int64_t>(i);
    case Type::kF16:
      return Pair<D, F16>(i);
    case Type::kBF16:
      return Pair<D, BF16>(i);
    case Type::kF32:
      return Pair<D, float>(i);
    case Type::kF64:
      return Pair<D, double>(i);
    default:
      return nullptr;
  }
}

// Two float32 to a packed pair: the first source operand goes to the high half.
template <class T>
Outcome Pack(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const Instruction& i = *s.source;
  Rounding rounding = RoundingOf(i);
  bool relu = i.Has(Mod::kRelu), satfinite = i.Has(Mod::kSatfinite);
  auto narrow = [=](uint32_t bits) -> uint32_t {
    double x = BitCast<float>(bits);
    constexpr double kLargest = std::is_same_v<T, F16> ? 65504.0 : 0x1.FEp127;
    if (relu && x <= 0) x = 0;
    if (satfinite && x == x) x = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
    return FromDouble<T>(x, rounding).bits;
  };
  ForLanes(mask, [=](int l) { d[l] = narrow(a[l]) << 16 | narrow(b[l]); });
  return Outcome::kNext;
}
struct PackF16 {
  static uint32_t Apply(float a, float b) {
    return uint32_t{NearestF16(a).bits} << 16 | NearestF16(b).bits;
  }
};
struct PackBF16 {
  static uint32_t Apply(float a, float b) {
    return uint32_t{NearestBF16(a).bits} << 16 | NearestBF16(b).bits;
  }
};

Outcome ToTF32(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  Rounding rounding = RoundingOf(*s.source);
  bool relu = s.source->Has(Mod::kRelu), satfinite = s.source->Has(Mod::kSatfinite);
  ForLanes(mask, [=](int l) {
    float x = BitCast<float>(a[l]);
    uint32_t result = Encode(relu && x <= 0 ? 0.0f : x, 10, 8, rounding) << 13;
    // The compiler makes .rna from integer instructions, which do not look for a NaN.
    if (rounding == Rounding::kNearestAway && x != x) result = a[l] & 0xFFFFE000;
    if (satfinite && (result & 0x7F800000) == 0x7F800000) result -= 0x2000;
    d[l] = result;
  });
  return Outcome::kNext;
}

}  // namespace

Handler SelectConvert(const Instruction& i) {
  if (Handler small = SelectSmall(i)) return small;
  bool is_plain =
      RoundingOf(i) == Rounding::kNearestEven && !i.Has(Mod::kRelu) && !i.Has(Mod::kSatfinite);
  switch (i.type[0]) {
    case Type::kU8:
      return WithSource<uint8_t>(i);
    case Type::kU16:
      return WithSource<uint16_t>(i);
    case Type::kU32:
      return WithSource<uint32_t>(i);
    case Type::kU64:
      return WithSource<uint64_t>(i);
    case Type::kS8:
      return WithSource<int8_t>(i);
    case Type::kS16:
      return WithSource<int16_t>(i);
    case Type::kS32:
      return WithSource<int32_t>(i);
    case Type::kS64:
      return WithSource<int64_t>(i);
    case Type::kF16:
      return WithSource<F16>(i);
    case Type::kBF16:
      return WithSource<BF16>(i);
    case Type::kF32:
      return WithSource<float>(i);
    case Type::kF64:
      return WithSource<double>(i);
    case Type::kTF32:
      return ToTF32;
    case Type::kF16x2:
      return is_plain ? Binary<uint32_t, float, float, PackF16> : Pack<F16>;
    case Type::kBF16x2:
      return is_plain ? Binary<uint32_t, float, float, PackBF16> : Pack<BF16>;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
