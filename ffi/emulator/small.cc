// cvt between pairs of small floats (8, 6 and 4 bits; ue8m0, a power of two) and float32, float16
// and bfloat16 (PTX ISA 9.7.9.21); and cvt.pack.
#include "emulator/small.h"

#include <algorithm>

#include "emulator/handlers.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Type;

const SmallFormat* FormatOf(Type type) {
  switch (type) {
    case Type::kE4M3x2:
      return &kE4M3;
    case Type::kE5M2x2:
      return &kE5M2;
    case Type::kE2M3x2:
      return &kE2M3;
    case Type::kE3M2x2:
      return &kE3M2;
    case Type::kE2M1x2:
      return &kE2M1;
    default:
      return nullptr;
  }
}

// An element of a pair of 4-bit values has four bits, every other eight.
int ElementBitsOf(Type type) { return type == Type::kE2M1x2 ? 4 : 8; }

double Half(Type pair, uint32_t bits) {
  auto low = static_cast<uint16_t>(bits);
  return pair == Type::kF16x2 ? ToDouble(F16{low}) : ToDouble(BF16{low});
}

// The exponent, rounded down or up; 0xFF is NaN, and there is no zero: 0 is 2^-127.
uint32_t ToUE8M0(float x, bool up, bool satfinite) {
  uint32_t bits = BitCast<uint32_t>(x), magnitude = bits & 0x7FFFFFFF, result = magnitude >> 23;
  if (up && (magnitude & 0x7FFFFF) != 0 && magnitude > 0x400000 && magnitude < 0x7F800000) ++result;
  bool is_nan = magnitude > 0x7F800000;
  return satfinite && !is_nan && result == 0xFF ? 0xFE : result;
}

// The two values of the source pair, or of two float32 operands, of which the first goes to the
// high half.
struct Sources {
  Sources(const Warp& w, const Step& s)
      : pair(s.source->type[1]),
        a(w.In<uint32_t>(s.args[1])),
        b(w.In<uint32_t>(s.args[pair == Type::kF32 ? 2 : 1])) {}
  WarpValues High() const { return Load(a, 16); }
  WarpValues Low() const { return Load(b, 0); }

  Type pair;
  const uint32_t *a, *b;

 private:
  WarpValues Load(const uint32_t* slots, int shift) const {
    WarpValues values;
    if (pair == Type::kF32) {
      for (int l = 0; l < kLanes; ++l) values.lane[l] = BitCast<float>(slots[l]);
    } else {
      for (int l = 0; l < kLanes; ++l) values.lane[l] = Half(pair, slots[l] >> shift);
    }
    return values;
  }
};

// Rounds once, to nearest even; what is too large, and a NaN where there is none, becomes the
// largest finite value.
Outcome PackSmall(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  const SmallFormat& format = *FormatOf(i.type[0]);
  int bits = ElementBitsOf(i.type[0]);
  bool relu = i.Has(Mod::kRelu);
  auto* d = w.Out<uint32_t>(s.args[0]);
  Sources sources(w, s);
  uint32_t codes[2][kLanes];
  for (bool low : {false, true}) {
    WarpValues x = low ? sources.Low() : sources.High();
    if (relu) Relu(&x);
    Clamp(&x, format.largest);
    EncodeLanes(x, format, Rounding::kNearestEven, codes[low]);
  }
  ForLanes(mask, [&](int l) { d[l] = codes[0][l] << bits | codes[1][l]; });
  return Outcome::kNext;
}

Outcome UnpackSmall(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  const SmallFormat& format = *FormatOf(i.type[1]);
  int bits = ElementBitsOf(i.type[1]);
  bool relu = i.Has(Mod::kRelu), satfinite = i.Has(Mod::kSatfinite);
  bool to_f16 = i.type[0] == Type::kF16x2;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  auto widen = [=](uint32_t code) -> uint32_t {
    double x = FromSmall(code, format);
    if (relu && x <= 0) x = 0;
    if (satfinite && std::isinf(x)) x = std::copysign(0x1.FEp127, x);
    return to_f16 ? ToF16(x).bits : ToBF16(x).bits;
  };
  ForLanes(mask, [=](int l) { d[l] = widen(a[l] >> bits) << 16 | widen(a[l]); });
  return Outcome::kNext;
}

Outcome PackExponents(Warp& w, const Step& s, uint32_t mask) {
  bool up = s.source->Has(Mod::kRp), satfinite = s.source->Has(Mod::kSatfinite);
  auto* d = w.Out<uint32_t>(s.args[0]);
  Sources sources(w, s);
  WarpValues high = sources.High(), low = sources.Low();
  auto narrow = [=](double x) { return ToUE8M0(static_cast<float>(x), up, satfinite); };
  ForLanes(mask, [&](int l) { d[l] = narrow(high.lane[l]) << 8 | narrow(low.lane[l]); });
  return Outcome::kNext;
}

Outcome UnpackExponents(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  auto widen = [](uint32_t code) -> uint32_t {
    code &= 0xFF;
    return code == 0xFF ? 0x7FFF : code == 0 ? 0x0040 : code << 7;
  };
  ForLanes(mask, [=](int l) { d[l] = widen(a[l] >> 8) << 16 | widen(a[l]); });
  return Outcome::kNext;
}

// cvt.pack.sat d, a, b{, c}: a above b, both clamped, and above them the low bits of c.
Outcome PackIntegers(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  int bits = static_cast<int>(ptx::Bits(i.type[0]));
  bool is_signed = ptx::IsSigned(i.type[0]);
  int32_t least = is_signed ? -(1 << (bits - 1)) : 0;
  int32_t most = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const auto* c = i.operand_count == 4 ? w.In<uint32_t>(s.args[3]) : nullptr;
  auto narrow = [=](uint32_t value) {
    int32_t clamped = std::min(std::max(static_cast<int32_t>(value), least), most);
    return static_cast<uint32_t>(clamped) & ((1u << bits) - 1);
  };
  ForLanes(mask, [=](int l) {
    uint32_t result = narrow(a[l]) << bits | narrow(b[l]);
    d[l] = c != nullptr ? c[l] << (2 * bits) | result : result;
  });
  return Outcome::kNext;
}

}  // namespace

double FromSmall(uint32_t bits, const SmallFormat& f) {
  int bias = (1 << (f.exponent - 1)) - 1;
  uint32_t sign = bits >> (f.exponent + f.mantissa) & 1;
  uint32_t code = bits & ((1u << (f.exponent + f.mantissa)) - 1);
  double value;
  if (code > f.most) {  // above the finite values: e5m2 has an infinity, then NaN
    if (code != f.most + 1u || f.exponent != 5) return std::numeric_limits<double>::quiet_NaN();
    value = std::numeric_limits<double>::infinity();
  } else {
    int exponent = static_cast<int>(code >> f.mantissa);
    auto significand = static_cast<int>(code & ((1u << f.mantissa) - 1));
    if (exponent > 0) significand += 1 << f.mantissa;
    value = std::ldexp(significand, std::max(exponent, 1) - bias - f.mantissa);
  }
  return sign ? -value : value;
}

Handler SelectSmall(const Instruction& i) {
  if (i.Has(Mod::kPack)) return PackIntegers;
  if (FormatOf(i.type[0]) != nullptr) return PackSmall;
  if (FormatOf(i.type[1]) != nullptr) return UnpackSmall;
  if (i.type[0] == Type::kUE8M0x2) return PackExponents;
  return i.type[1] == Type::kUE8M0x2 ? UnpackExponents : nullptr;
}

}  // namespace jax_ptx::emulator
