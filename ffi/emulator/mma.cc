// mma.sync (PTX ISA 9.7.14.5): D = A · B + C, with fragments whose places in the matrices the ISA
// gives.
#include <algorithm>

#include "emulator/dot.h"
#include "emulator/handlers.h"
#include "emulator/matrix.h"
#include "emulator/number.h"
#include "emulator/small.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Type;

struct Shape {
  Mod name;
  int m, k;
};
constexpr Shape kShapes[] = {
    {Mod::kM8n8k4, 8, 4},       {Mod::kM8n8k16, 8, 16},     {Mod::kM8n8k32, 8, 32},
    {Mod::kM8n8k128, 8, 128},   {Mod::kM16n8k4, 16, 4},     {Mod::kM16n8k8, 16, 8},
    {Mod::kM16n8k16, 16, 16},   {Mod::kM16n8k32, 16, 32},   {Mod::kM16n8k64, 16, 64},
    {Mod::kM16n8k128, 16, 128}, {Mod::kM16n8k256, 16, 256},
};

// A register of fragments, whatever its width.
uint64_t Register(const Warp& w, uint32_t arg, Type type, int lane) {
  return type == Type::kF64 ? w.In<uint64_t>(arg)[lane] : w.In<uint32_t>(arg)[lane];
}

// Elements of a register. Every type that is narrower than one is packed.
int PerRegister(Type type) { return static_cast<int>(std::max(1u, 32 / ptx::Bits(type))); }

// Integer sums are exact in float64. The bits of .b1 are 0 and 1, of which .and is the product and
// .xor the difference.
void MultiplyIntegers(const Instruction& i, int m, int k, Factors* x) {
  bool is_xor = i.Has(Mod::kXor);
  for (int row = 0; row < m; ++row) {
    for (int j = 0; j < k; ++j) {
      double a = x->a[row][j];
      for (int n = 0; n < kN; ++n) {
        x->c[row][n] += is_xor ? std::fabs(a - x->b[j][n]) : a * x->b[j][n];
      }
    }
  }
}

Outcome Mma(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  const Shape& shape = *std::find_if(std::begin(kShapes), std::end(kShapes),
                                     [&](const Shape& one) { return i.Has(one.name); });
  Type type_d = i.type[0], type_a = i.type[1], type_b = i.type[2];
  int per_a = PerRegister(type_a), per_d = PerRegister(type_d), blocks = shape.m / 8;
  int bits = static_cast<int>(ptx::Bits(type_a));
  int a_registers = shape.m * shape.k / kLanes / per_a, b_registers = kN * shape.k / kLanes / per_a;
  int d_registers = shape.m * kN / kLanes / per_d;
  const uint32_t* a_args = s.args + d_registers;
  const uint32_t* b_args = a_args + a_registers;
  const uint32_t* c_args = b_args + b_registers;
  static thread_local Factors x;
  for (int lane = 0; lane < kLanes; ++lane) {
    int group = lane / 4, within = lane % 4;
    // Registers go down the rows first, eight at a time, then to the next columns.
    for (int r = 0; r < a_registers; ++r) {
      uint64_t value = Register(w, a_args[r], type_a, lane);
      double* row = x.a[group + 8 * (r % blocks)] + per_a * (within + 4 * (r / blocks));
      for (int e = 0; e < per_a; ++e) row[e] = ElementFrom(type_a, value >> (bits * e));
    }
    for (int r = 0; r < b_registers; ++r) {
      uint64_t value = Register(w, b_args[r], type_b, lane);
      int row = per_a * (within + 4 * r);
      for (int e = 0; e < per_a; ++e)
        x.b[row + e][group] = ElementFrom(type_b, value >> (bits * e));
    }
    for (int e = 0; e < d_registers * per_d; ++e) {
      uint64_t value = Register(w, c_args[e / per_d], type_d, lane) >> (16 * (e % per_d));
      x.c[group + 8 * (e / 2)][2 * within + e % 2] = ElementFrom(type_d, value);
    }
  }
  if (type_d == Type::kS32) {
    MultiplyIntegers(i, shape.m, shape.k, &x);
  } else {
    MultiplyFloats(type_d, type_a, shape.m, shape.k, &x);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < d_registers; ++r) {
      uint64_t value = 0;
      for (int h = 0; h < per_d; ++h) {
        int e = r * per_d + h;
        double sum = x.c[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2];
        value |= ElementBits(type_d, sum, i.Has(Mod::kSatfinite)) << (16 * h);
      }
      if (type_d == Type::kF64) {
        w.Out<uint64_t>(s.args[r])[lane] = value;
      } else {
        w.Out<uint32_t>(s.args[r])[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  return Outcome::kNext;
}

// m8n8k4 of float16: four products, each by the eight lanes of a quad pair (0 to 3 and 16 to 19,
// and so on).
Outcome MmaQuadPairs(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  // Both layouts are written, A's first.
  bool a_is_row = i.text.find(".row") < i.text.find(".col");
  bool b_is_row =
      i.Has(Mod::kRow) && (!i.Has(Mod::kCol) || i.text.rfind(".row") > i.text.rfind(".col"));
  Type type_d = i.type[0], type_c = i.type[3];
  int per_d = PerRegister(type_d), per_c = PerRegister(type_c);
  const uint32_t* a_args = s.args + 8 / per_d;
  const uint32_t* b_args = a_args + 2;
  const uint32_t* c_args = b_args + 2;
  auto half = [&](const uint32_t* args, int lane, int e) {
    return ElementFrom(Type::kF16, w.In<uint32_t>(args[e / 2])[lane] >> (16 * (e % 2)));
  };
  // Where element e of a lane's accumulator stands.
  auto place = [](Type type, int lane, int e, int* row, int* column) {
    int high = lane < 16 ? 0 : 4;
    *row = high + (type == Type::kF16 ? lane % 4 : (lane & 1) + (e & 2));
    *column = type == Type::kF16 ? e : (e & 4) + (lane & 2) + (e & 1);
  };
  static thread_local Factors x;
  for (int pair = 0; pair < 4; ++pair) {
    for (int n = 0; n < 8; ++n) {
      int lane = 4 * pair + n % 4 + 16 * (n / 4), high = 4 * (n / 4);
      for (int e = 0; e < 4; ++e) {
        double a = half(a_args, lane, e), b = half(b_args, lane, e);
        (a_is_row ? x.a[n][e] : x.a[e + high][n % 4]) = a;
        (b_is_row ? x.b[n % 4][e + high] : x.b[e][n]) = b;
      }
      for (int e = 0; e < 8; ++e) {
        int row, column;
        place(type_c, lane, e, &row, &column);
        x.c[row][column] = type_c == Type::kF16
                               ? half(c_args, lane, e)
                               : ElementFrom(type_c, w.In<uint32_t>(c_args[e / per_c])[lane]);
      }
    }
    MultiplyOneByOne(type_d, &x);
    for (int n = 0; n < 8; ++n) {
      int lane = 4 * pair + n % 4 + 16 * (n / 4);
      for (int r = 0; r < 8 / per_d; ++r) {
        uint64_t value = 0;
        for (int h = 0; h < per_d; ++h) {
          int row, column;
          place(type_d, lane, r * per_d + h, &row, &column);
          value |= ElementBits(type_d, x.c[row][column], false) << (16 * h);
        }
        w.Out<uint32_t>(s.args[r])[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  return Outcome::kNext;
}

}  // namespace

double ElementFrom(Type type, uint64_t bits) {
  auto low = static_cast<uint32_t>(bits);
  switch (type) {
    case Type::kF16:
      return ToDouble(F16{static_cast<uint16_t>(low)});
    case Type::kBF16:
      return ToDouble(BF16{static_cast<uint16_t>(low)});
    case Type::kTF32:
      return BitCast<float>(low & 0xFFFFE000);
    case Type::kF32:
      return BitCast<float>(low);
    case Type::kF64:
      return BitCast<double>(bits);
    case Type::kE4M3:
      return FromSmall(low & 0xFF, kE4M3);
    case Type::kE5M2:
      return FromSmall(low & 0xFF, kE5M2);
    case Type::kS32:
      return static_cast<int32_t>(low);
    case Type::kS8:
      return static_cast<int8_t>(low);
    case Type::kU8:
      return low & 0xFF;
    case Type::kS4:
      return static_cast<int32_t>(low << 28) >> 28;
    case Type::kU4:
      return low & 0xF;
    default:  // .b1
      return low & 1;
  }
}

uint64_t ElementBits(Type type, double value, bool satfinite) {
  switch (type) {
    case Type::kF16:
      return ToF16(value).bits;
    case Type::kF32:
      return BitCast<uint32_t>(Canonical(static_cast<float>(value)));
    case Type::kF64:
      return BitCast<uint64_t>(value);
    default: {  // .s32; the sum is exact
      double least = std::numeric_limits<int32_t>::min(),
             most = std::numeric_limits<int32_t>::max();
      if (satfinite) value = std::min(std::max(value, least), most);
      return static_cast<uint32_t>(static_cast<int64_t>(value));
    }
  }
}

Handler SelectMma(const Instruction& i) {
  return i.Has(Mod::kM8n8k4) && i.type[1] == Type::kF16 ? MmaQuadPairs : Mma;
}

}  // namespace jax_ptx::emulator
