#include "emulator/number.h"

namespace jax_ptx::emulator {

uint32_t Encode(double value, int mantissa, int exponent, Rounding rounding) {
  uint32_t infinity = ((1u << exponent) - 1) << mantissa;
  uint64_t bits = BitCast<uint64_t>(value);
  bool is_negative = bits >> 63;
  uint32_t sign = is_negative ? 1u << (mantissa + exponent) : 0;
  if (value != value) return infinity | ((1u << mantissa) - 1);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;

  int power = static_cast<int>(bits >> 52 & 0x7FF) - 1023;
  uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
  if (power == -1023) {
    ++power;  // a float64 subnormal
  } else {
    significand |= uint64_t{1} << 52;
  }
  int bias = (1 << (exponent - 1)) - 1;
  int least = 1 - bias;
  // Bits that do not fit: more of them below the smallest normal value.
  int dropped = 52 - mantissa + (power < least ? least - power : 0);
  if (dropped > 60) {  // far below half of the smallest subnormal
    dropped = 60;
    significand = 1;
  }
  uint64_t kept = significand >> dropped, rest = significand & ((uint64_t{1} << dropped) - 1);
  uint64_t half = uint64_t{1} << (dropped - 1);
  bool up = false;
  switch (rounding) {
    case Rounding::kNearestEven:
      up = rest > half || (rest == half && (kept & 1));
      break;
    case Rounding::kNearestAway:
      up = rest >= half;
      break;
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = is_negative && rest != 0;
      break;
    case Rounding::kUp:
      up = !is_negative && rest != 0;
      break;
  }
  kept += up ? 1 : 0;
  // A carry out of the significand moves into the exponent by itself.
  uint64_t biased = power < least ? 0 : static_cast<uint64_t>(power + bias - 1);
  uint64_t result = kept + (biased << mantissa);
  if (result >= infinity) {
    bool to_infinity = rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway ||
                       (rounding == Rounding::kDown && is_negative) ||
                       (rounding == Rounding::kUp && !is_negative);
    return sign | (to_infinity ? infinity : infinity - 1);
  }
  return sign | static_cast<uint32_t>(result);
}

}  // namespace jax_ptx::emulator
