// wmma (PTX ISA 9.7.14.4). Where in a fragment an element stands is not specified, so that here
// every matrix is dealt out to the lanes row by row; a fragment with room for more holds copies.
#include <algorithm>

#include "emulator/dot.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/matrix.h"
#include "emulator/memory.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

struct Shape {
  int m, n, k;
};
constexpr int kMaxSide = 32;

Shape ShapeOf(const Instruction& i) {
  if (i.Has(Mod::kM32n8k16)) return {32, 8, 16};
  if (i.Has(Mod::kM8n32k16)) return {8, 32, 16};
  if (i.Has(Mod::kM16n16k8)) return {16, 16, 8};
  if (i.Has(Mod::kM8n8k4)) return {8, 8, 4};
  return {16, 16, 16};
}

int Registers(Type type, bool is_accumulator) {
  switch (type) {
    case Type::kF64:
      return is_accumulator ? 2 : 1;
    case Type::kF16:
      return is_accumulator ? 4 : 8;
    case Type::kF32:
    case Type::kS32:
      return 8;
    default:
      return ptx::Bits(type) == 8 ? 2 : 4;
  }
}

// How a fragment is held: `per` elements of `bits` bits in each of `registers` registers.
struct Fragment {
  Fragment(Type type, int registers)
      : type(type),
        registers(registers),
        bits(static_cast<int>(ptx::Bits(type))),
        per(bits < 32 ? 32 / bits : 1) {}

  // The element of the matrix that stands at place e of a lane.
  int Index(int lane, int e, int elements) const { return (lane + kLanes * e) % elements; }

  Type type;
  int registers, bits, per;
};

void Unpack(const Warp& w, const uint32_t* args, const Fragment& f, int elements, double* matrix) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < f.registers * f.per; ++e) {
      uint32_t arg = args[e / f.per];
      uint64_t value = f.bits == 64 ? w.In<uint64_t>(arg)[lane] : w.In<uint32_t>(arg)[lane];
      matrix[f.Index(lane, e, elements)] = ElementFrom(f.type, value >> (f.bits * (e % f.per)));
    }
  }
}

void PutBits(Warp& w, uint32_t arg, const Fragment& f, int lane, int part, uint64_t bits) {
  if (f.bits == 64) {
    w.Out<uint64_t>(arg)[lane] = bits;
    return;
  }
  uint32_t* word = w.Out<uint32_t>(arg) + lane;
  *word = (part == 0 ? 0 : *word) | static_cast<uint32_t>(bits) << (f.bits * part);
}

// wmma.load.{a, b, c} fragment, [p]{, stride} and wmma.store.d [p], fragment{, stride}: the stride
// between rows, or columns with .col, in elements; without one they follow each other.
template <bool is_load>
Outcome Transfer(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  Shape shape = ShapeOf(i);
  int rows = i.Has(Mod::kB) ? shape.k : shape.m, columns = i.Has(Mod::kA) ? shape.k : shape.n;
  bool is_column = i.Has(Mod::kCol);
  Fragment f(i.type[0], Registers(i.type[0], i.Has(Mod::kC) || i.Has(Mod::kD)));
  bool has_stride = i.operand_count == f.registers + 2;
  uint32_t address = is_load ? static_cast<uint32_t>(f.registers) : 0;
  const uint32_t* args = is_load ? s.args : s.args + 1;
  uint32_t bytes = static_cast<uint32_t>(f.bits) / 8;
  for (int lane = 0; lane < kLanes; ++lane) {
    uint64_t base = AddressOf(w, s, address, lane);
    uint64_t stride = static_cast<uint64_t>(is_column ? rows : columns);
    if (has_stride) stride = w.In<uint32_t>(s.args[i.operand_count - 1])[lane];
    for (int e = 0; e < f.registers * f.per; ++e) {
      int index = f.Index(lane, e, rows * columns), row = index / columns, column = index % columns;
      uint64_t major = static_cast<uint64_t>(is_column ? column : row),
               minor = static_cast<uint64_t>(is_column ? row : column);
      uint8_t* place = LocateLane(w, s, lane, s.space, base + (major * stride + minor) * bytes,
                                  bytes, is_load ? Access::kRead : Access::kWrite);
      if (place == nullptr) return Outcome::kFault;
      uint64_t value = 0;
      if (is_load) {
        std::memcpy(&value, place, bytes);
        PutBits(w, args[e / f.per], f, lane, e % f.per, value);
      } else {
        uint32_t arg = args[e / f.per];
        value = f.bits == 64 ? w.In<uint64_t>(arg)[lane] : w.In<uint32_t>(arg)[lane];
        value >>= f.bits * (e % f.per);
        std::memcpy(place, &value, bytes);
      }
    }
  }
  return Outcome::kNext;
}

// Floats add up as in the mma that a wmma is made of: eight columns at a time, and all of k at once
// but for tf32, whose k of 8 is two mma of 4.
void MultiplyTiles(const Shape& shape, Type type_d, Type type_a, const double* left,
                   const double* right, double* sums) {
  static thread_local Factors x;
  int m = std::min(shape.m, kMaxM), k = type_a == Type::kTF32 ? 4 : shape.k;
  for (int top = 0; top < shape.m; top += m) {
    for (int first = 0; first < shape.n; first += kN) {
      for (int row = 0; row < m; ++row) {
        std::copy_n(sums + (top + row) * shape.n + first, kN, x.c[row]);
      }
      for (int begin = 0; begin < shape.k; begin += k) {
        for (int j = 0; j < k; ++j) {
          for (int row = 0; row < m; ++row) {
            x.a[row][j] = left[(top + row) * shape.k + begin + j];
          }
          for (int n = 0; n < kN; ++n) x.b[j][n] = right[(begin + j) * shape.n + first + n];
        }
        MultiplyFloats(type_d, type_a, m, k, &x);
      }
      for (int row = 0; row < m; ++row) {
        std::copy_n(x.c[row], kN, sums + (top + row) * shape.n + first);
      }
    }
  }
}

// Sums of integers are exact in float64.
void MultiplyIntegers(const Shape& shape, const double* left, const double* right, double* sums) {
  for (int row = 0; row < shape.m; ++row) {
    for (int j = 0; j < shape.k; ++j) {
      for (int column = 0; column < shape.n; ++column) {
        sums[row * shape.n + column] += left[row * shape.k + j] * right[j * shape.n + column];
      }
    }
  }
}

Outcome Multiply(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  Shape shape = ShapeOf(i);
  // Of float16 only the accumulators' types are written.
  bool is_f16 = i.type[2] == Type::kNone;
  Type type_a = is_f16 ? Type::kF16 : i.type[1], type_b = is_f16 ? Type::kF16 : i.type[2];
  Type type_c = is_f16 ? i.type[1] : i.type[3];
  Fragment d(i.type[0], Registers(i.type[0], true)), c(type_c, Registers(type_c, true));
  Fragment a(type_a, Registers(type_a, false)), b(type_b, Registers(type_b, false));
  static thread_local double left[kMaxSide * kMaxSide], right[kMaxSide * kMaxSide],
      sums[kMaxSide * kMaxSide];
  const uint32_t* args = s.args + d.registers;
  Unpack(w, args, a, shape.m * shape.k, left);
  Unpack(w, args + a.registers, b, shape.k * shape.n, right);
  Unpack(w, args + a.registers + b.registers, c, shape.m * shape.n, sums);
  if (d.type == Type::kS32) {
    MultiplyIntegers(shape, left, right, sums);
  } else {
    MultiplyTiles(shape, d.type, type_a, left, right, sums);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < d.registers * d.per; ++e) {
      double sum = sums[d.Index(lane, e, shape.m * shape.n)];
      PutBits(w, s.args[e / d.per], d, lane, e % d.per,
              ElementBits(d.type, sum, i.Has(Mod::kSatfinite)));
    }
  }
  return Outcome::kNext;
}

}  // namespace

Handler SelectWmma(const Instruction& i) {
  if (i.op == Op::kWmmaMma) return Multiply;
  return i.op == Op::kWmmaLoad ? Transfer<true> : Transfer<false>;
}

}  // namespace jax_ptx::emulator
