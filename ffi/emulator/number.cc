#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

template <Rounding rounding>
inline __attribute__((always_inline)) void Encode(const WarpValues& values, const Format& format,
                                                  uint32_t* codes) {
  const Format f = format;
  for (int l = 0; l < kLanes; ++l) codes[l] = Encode<rounding>(values.lane[l], f);
}

inline __attribute__((always_inline)) void EncodeAll(const WarpValues& values, const Format& format,
                                                     Rounding rounding, uint32_t* codes) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return Encode<Rounding::kNearestEven>(values, format, codes);
    case Rounding::kNearestAway:
      return Encode<Rounding::kNearestAway>(values, format, codes);
    case Rounding::kZero:
      return Encode<Rounding::kZero>(values, format, codes);
    case Rounding::kDown:
      return Encode<Rounding::kDown>(values, format, codes);
    case Rounding::kUp:
      return Encode<Rounding::kUp>(values, format, codes);
  }
}

template <Rounding rounding>
inline __attribute__((always_inline)) void Round(WarpValues* values) {
  for (double& x : values->lane) {
    // Adding 2^52 rounds; from there on every float64 is an integer.
    double size = std::fabs(x), integer = size < 0x1p52 ? size + 0x1p52 - 0x1p52 : size;
    integer = std::copysign(integer, x);
    if (rounding == Rounding::kZero)
      integer -= std::fabs(integer) > size ? std::copysign(1.0, x) : 0.0;
    if (rounding == Rounding::kDown) integer -= integer > x ? 1.0 : 0.0;
    if (rounding == Rounding::kUp) integer += integer < x ? 1.0 : 0.0;
    x = x == x ? std::copysign(integer, x) : x + x;
  }
}

inline __attribute__((always_inline)) void RoundAll(WarpValues* values, Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return Round<Rounding::kZero>(values);
    case Rounding::kDown:
      return Round<Rounding::kDown>(values);
    case Rounding::kUp:
      return Round<Rounding::kUp>(values);
    default:
      return Round<Rounding::kNearestEven>(values);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void EncodeWide(const WarpValues& values, const Format& format,
                                                Rounding rounding, uint32_t* codes) {
  EncodeAll(values, format, rounding, codes);
}
__attribute__((target("avx2"))) void RoundWide(WarpValues* values, Rounding rounding) {
  RoundAll(values, rounding);
}
bool HasWide() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2;
}
#else
constexpr auto EncodeWide = EncodeAll;
constexpr auto RoundWide = RoundAll;
bool HasWide() { return false; }
#endif

}  // namespace

void EncodeLanes(const WarpValues& values, const Format& format, Rounding rounding,
                 uint32_t* codes) {
  if (HasWide()) return EncodeWide(values, format, rounding, codes);
  EncodeAll(values, format, rounding, codes);
}

void RoundToIntegers(WarpValues* values, Rounding rounding) {
  if (HasWide()) return RoundWide(values, rounding);
  RoundAll(values, rounding);
}

}  // namespace jax_ptx::emulator
