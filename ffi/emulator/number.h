// Float formats: conversions with one rounding, flushing, canonical NaNs.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "emulator/lanes.h"

namespace jax_ptx::emulator {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

enum class Rounding : uint8_t { kNearestEven, kZero, kDown, kUp, kNearestAway };

inline float Canonical(float x) { return x == x ? x : BitCast<float>(uint32_t{0x7FFFFFFF}); }
// The hardware keeps a float64 NaN's payload, as the host does.
inline double Canonical(double x) { return x; }

inline float Flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
inline double Flush(double x) { return x; }
inline F16 Flush(F16 x) {
  return {static_cast<uint16_t>((x.bits & 0x7FFF) < 0x0400 ? x.bits & 0x8000 : x.bits)};
}
inline BF16 Flush(BF16 x) {
  return {static_cast<uint16_t>((x.bits & 0x7FFF) < 0x0080 ? x.bits & 0x8000 : x.bits)};
}

template <class T>
inline T Saturate01(T x) {  // .sat: NaN and everything below +0.0 become +0.0
  return x > T{0} ? (x < T{1} ? x : T{1}) : T{0};
}

inline float ToFloat(F16 x) {
  // The half's bits, read as a float with a bias of 127, are 2^-112 of its value; subnormals
  // included.
  uint32_t magnitude = (x.bits & 0x7FFFu) << 13;
  uint32_t scaled = BitCast<uint32_t>(BitCast<float>(magnitude) * 0x1p112f);
  uint32_t special = magnitude == 0x0F800000 ? 0x7F800000 : 0x7FFFFFFF;
  uint32_t sign = magnitude > 0x0F800000 ? 0 : (x.bits & 0x8000u) << 16;
  return BitCast<float>((magnitude >= 0x0F800000 ? special : scaled) | sign);
}
inline float ToFloat(BF16 x) { return BitCast<float>(uint32_t{x.bits} << 16); }
inline float ToFloat(float x) { return x; }
inline double ToDouble(F16 x) { return ToFloat(x); }
inline double ToDouble(BF16 x) { return ToFloat(x); }
inline double ToDouble(float x) { return x; }
inline double ToDouble(double x) { return x; }

// A binary format like IEEE's: stored bits of the significand, bits of the exponent.
struct Format {
  int mantissa, exponent;
  double largest;  // finite value
};
constexpr Format kF16{10, 5, 65504.0}, kBF16{7, 8, 0x1.FEp127}, kTF32{10, 8, 0x1.FFCp127},
    kF32{23, 8, std::numeric_limits<float>::max()};

inline double PowerOfTwo(int exponent) {
  return BitCast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

// The value in a narrower format, rounded once: NaN gives all ones below the sign, an overflow what
// the rounding says. Without branches, so that whole warps vectorise; the host rounds to nearest.
template <Rounding rounding>
inline __attribute__((always_inline)) uint32_t Encode(double value, const Format& f) {
  constexpr bool kIsNearest =
      rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway;
  const int least_exponent = 2 - (1 << (f.exponent - 1));
  const double least = PowerOfTwo(least_exponent);  // normal value
  double size = std::fabs(value);
  size = size < 2 * f.largest ? size : 2 * f.largest;  // beyond which all are alike
  double power = BitCast<double>(BitCast<uint64_t>(size) & uint64_t{0x7FF} << 52);
  power = power > least ? power : least;  // subnormal values have the last place of the least
  double last_place = power * PowerOfTwo(-f.mantissa);
  // A float64 of this size has the same last place: adding it rounds.
  double base = power * PowerOfTwo(52 - f.mantissa);
  double exact = std::copysign(size, value), rounded = std::copysign(size + base - base, value);
  if (rounding == Rounding::kNearestAway) {
    size = std::fabs(exact) - std::fabs(rounded);
    rounded += size == last_place / 2 ? std::copysign(last_place, value) : 0.0;
  } else if (rounding == Rounding::kZero) {
    double excess = std::copysign(last_place, value);
    rounded -= std::fabs(rounded) > std::fabs(exact) ? excess : 0.0;
  } else if (rounding == Rounding::kDown) {
    rounded -= rounded > exact ? last_place : 0.0;
  } else if (rounding == Rounding::kUp) {
    rounded += rounded < exact ? last_place : 0.0;
  }
  size = std::fabs(rounded);

  const uint64_t infinity = ((uint64_t{1} << f.exponent) - 1) << f.mantissa;
  double kept = size < f.largest ? size : f.largest;
  // Added to the least normal value a subnormal one has its digits where they belong.
  uint64_t code = BitCast<uint64_t>(kept < least ? kept + least : kept) >> (52 - f.mantissa);
  uint64_t bias = static_cast<uint64_t>(1023 + least_exponent) << f.mantissa;
  code -= kept < least ? bias : bias - (uint64_t{1} << f.mantissa);
  double limit = kIsNearest                    ? f.largest
                 : rounding == Rounding::kDown ? (value < 0 ? f.largest : 2 * f.largest)
                 : rounding == Rounding::kUp   ? (value > 0 ? f.largest : 2 * f.largest)
                                               : 2 * f.largest;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  code = size > limit ? infinity : code;
  code = std::fabs(value) == kInfinity ? infinity : code;
  code |= BitCast<uint64_t>(value) >> 63 << (f.mantissa + f.exponent);
  return static_cast<uint32_t>(value == value ? code : infinity | ((1u << f.mantissa) - 1));
}

// A value for each lane; what the lanes that do not run have is worked on and left unused.
struct WarpValues {
  double lane[kLanes];
};
inline void Saturate(WarpValues* values) {
  for (double& x : values->lane) x = Saturate01(x);
}
inline void Relu(WarpValues* values) {  // keeps a NaN, but not -0
  for (double& x : values->lane) x = x <= 0 ? 0.0 : x;
}
inline void Clamp(WarpValues* values, double largest) {  // keeps a NaN
  for (double& x : values->lane) {
    x = x > largest ? largest : x;
    x = x < -largest ? -largest : x;
  }
}
void EncodeLanes(const WarpValues& values, const Format& format, Rounding rounding,
                 uint32_t* codes);
void RoundToIntegers(WarpValues* values, Rounding rounding);

inline F16 ToF16(double x) {
  return {static_cast<uint16_t>(Encode<Rounding::kNearestEven>(x, kF16))};
}
inline BF16 ToBF16(double x) {
  return {static_cast<uint16_t>(Encode<Rounding::kNearestEven>(x, kBF16))};
}
template <class T>
T FromDouble(double x);  // to nearest
template <>
inline F16 FromDouble<F16>(double x) {
  return ToF16(x);
}
template <>
inline BF16 FromDouble<BF16>(double x) {
  return ToBF16(x);
}

// Round-to-nearest from float32, without branches, so that whole warps vectorise.
inline BF16 NearestBF16(float x) {
  uint32_t bits = BitCast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded)};
}
inline F16 NearestF16(float x) {
  uint32_t bits = BitCast<uint32_t>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  // Below 2^-14 adding 0.5 puts the half's last place at the float's last place.
  uint32_t tiny = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3F000000;
  uint32_t normal = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  uint32_t result = magnitude < 0x38800000 ? tiny : normal;
  result = magnitude >= 0x477FF000 ? 0x7C00 : result;
  return {static_cast<uint16_t>(magnitude > 0x7F800000 ? 0x7FFF : result | sign)};
}

// a + b rounded to odd: rounding the result once more, to at most 50 bits, gives the correctly
// rounded sum.
inline double AddToOdd(double a, double b) {
  double sum = a + b;
  double from_b = sum - a;
  double error = (a - (sum - from_b)) + (b - from_b);
  if (error == 0 || !std::isfinite(sum)) return sum;
  uint64_t bits = BitCast<uint64_t>(sum);
  if ((bits & 1) == 0) bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
  return BitCast<double>(bits);
}

}  // namespace jax_ptx::emulator
