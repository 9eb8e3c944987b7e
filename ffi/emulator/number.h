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

// A float with `mantissa` stored bits and `exponent` exponent bits, IEEE-like, from a double. One
// rounding. NaN gives all ones below the sign; an overflow gives what the rounding mode says.
uint32_t Encode(double value, int mantissa, int exponent, Rounding rounding);

inline F16 ToF16(double x, Rounding r = Rounding::kNearestEven) {
  return {static_cast<uint16_t>(Encode(x, 10, 5, r))};
}
inline BF16 ToBF16(double x, Rounding r = Rounding::kNearestEven) {
  return {static_cast<uint16_t>(Encode(x, 7, 8, r))};
}
template <class T>
T FromDouble(double x, Rounding r);
template <>
inline F16 FromDouble<F16>(double x, Rounding r) {
  return ToF16(x, r);
}
template <>
inline BF16 FromDouble<BF16>(double x, Rounding r) {
  return ToBF16(x, r);
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
