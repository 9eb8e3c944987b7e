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

template <class T>
constexpr Format kFormat = kF16;
template <>
constexpr Format kFormat<BF16> = kBF16;

template <class S>
WarpValues Load(const Slot<S>* slots, bool flush) {
  WarpValues values;
  if constexpr (std::is_same_v<S, float>) {
    if (flush) {
      for (int l = 0; l < kLanes; ++l) values.lane[l] = Canonical(Flush(Get<S>(slots, l)));
      return values;
    }
  }
  for (int l = 0; l < kLanes; ++l) values.lane[l] = ToDouble(Get<S>(slots, l));
  return values;
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
  constexpr auto kLeast = static_cast<double>(Limits::min());
  constexpr auto kMost = static_cast<double>(Limits::max());
  constexpr bool is_wide = sizeof(D) == 8 || sizeof(S) == 8;
  constexpr double kHighestBit =
      static_cast<double>(uint64_t{1} << (8 * sizeof(D) - 1)) * (Limits::is_signed ? -1 : 1);
  double clamped = x > kLeast ? x : kLeast;
  clamped = clamped < kMost ? clamped : kMost;
  clamped = x == x ? clamped : is_wide ? kHighestBit : 0.0;
  if constexpr (sizeof(D) == 8) {
    return clamped == kMost ? Limits::max() : static_cast<D>(clamped);  // 2^63 or 2^64 does not fit
  } else if constexpr (std::is_same_v<D, uint32_t>) {
    // The host's vectors convert to signed integers alone.
    return static_cast<uint32_t>(static_cast<int32_t>(clamped - 0x1p31)) ^ 0x80000000;
  } else {
    return static_cast<D>(static_cast<int32_t>(clamped));
  }
}

template <class D, class S>
Outcome FloatToInteger(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  WarpValues x = Load<S>(w.In<Slot<S>>(s.args[1]), s.source->Has(Mod::kFtz));
  RoundToIntegers(&x, RoundingOf(*s.source));
  ForLanes(mask, [&](int l) { Put<D>(d, l, ClampToInteger<D, S>(x.lane[l])); });
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
  bool sat = s.source->Has(Mod::kSat);
  if constexpr (std::is_floating_point_v<D>) {
    // The host's conversion rounds once, in the mode that RunRounded has set.
    if (sat) {
      ForLanes(mask, [=](int l) { Put<D>(d, l, Saturate01(static_cast<D>(Get<S>(a, l)))); });
    } else {
      ForLanes(mask, [=](int l) { Put<D>(d, l, static_cast<D>(Get<S>(a, l))); });
    }
  } else {
    WarpValues x;
    for (int l = 0; l < kLanes; ++l) x.lane[l] = ToOdd(Get<S>(a, l));
    if (sat) Saturate(&x);
    uint32_t codes[kLanes];
    EncodeLanes(x, kFormat<D>, RoundingOf(*s.source), codes);
    ForLanes(mask, [&](int l) { d[l] = codes[l]; });
  }
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
  bool ftz = i.Has(Mod::kFtz);
  // The hardware does not flush what becomes an f16, though the ISA says so.
  WarpValues x = Load<S>(a, ftz && !std::is_same_v<D, F16>);
  if (i.Has(Mod::kRni) || i.Has(Mod::kRzi) || i.Has(Mod::kRmi) || i.Has(Mod::kRpi))
    RoundToIntegers(&x, rounding);
  if (i.Has(Mod::kSat)) Saturate(&x);
  if (i.Has(Mod::kRelu)) Relu(&x);
  if constexpr (std::is_floating_point_v<D>) {
    bool flushes_result = ftz && sizeof(D) == 4;
    ForLanes(mask, [&](int l) {
      D value = static_cast<D>(x.lane[l]);
      Put<D>(d, l, Canonical(flushes_result ? Flush(value) : value));
    });
  } else {
    if (i.Has(Mod::kSatfinite)) Clamp(&x, kFormat<D>.largest);
    uint32_t codes[kLanes];
    EncodeLanes(x, kFormat<D>, rounding, codes);
    ForLanes(mask, [&](int l) { d[l] = codes[l]; });
  }
  if constexpr (std::is_same_v<S, double>) {
    ForLanes(mask, [&](int l) {
      if (x.lane[l] != x.lane[l]) Put<D>(d, l, CutNan<D>(x.lane[l]));
    });
  } else if constexpr (std::is_same_v<S, F16> && std::is_same_v<D, double>) {
    ForLanes(mask, [&](int l) {
      if (x.lane[l] != x.lane[l]) Put<D>(d, l, WideNan(Get<S>(a, l)));
    });
  }
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
  const Instruction& i = *s.source;
  uint32_t codes[2][kLanes];
  for (int half : {0, 1}) {
    WarpValues x = Load<float>(w.In<uint32_t>(s.args[1 + half]), false);
    if (i.Has(Mod::kRelu)) Relu(&x);
    if (i.Has(Mod::kSatfinite)) Clamp(&x, kFormat<T>.largest);
    EncodeLanes(x, kFormat<T>, RoundingOf(i), codes[half]);
  }
  ForLanes(mask, [&](int l) { d[l] = codes[0][l] << 16 | codes[1][l]; });
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
  WarpValues x = Load<float>(a, false);
  if (s.source->Has(Mod::kRelu)) Relu(&x);
  uint32_t codes[kLanes];
  EncodeLanes(x, kTF32, rounding, codes);
  // The compiler makes .rna from integer instructions, which do not look for a NaN.
  bool keeps_nan = rounding == Rounding::kNearestAway;
  uint32_t excess = s.source->Has(Mod::kSatfinite) ? 0x2000 : 0;
  ForLanes(mask, [&](int l) {
    bool is_nan = (a[l] & 0x7FFFFFFF) > 0x7F800000;
    uint32_t result = keeps_nan && is_nan ? a[l] & 0xFFFFE000 : codes[l] << 13;
    d[l] = (result & 0x7F800000) == 0x7F800000 ? result - excess : result;
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
