// ldmatrix, stmatrix and mma.sync (PTX ISA 9.7.14.5): a warp holds a matrix, two elements a lane
// and register.
#include "emulator/dot.h"
#include "emulator/handlers.h"
#include "emulator/memory.h"
#include "emulator/number.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

// All 32 lanes must execute these together.
Outcome WholeWarp(Warp& w, const Step& s, uint32_t mask) {
  Outcome outcome = GatherAll(w, kAllLanes, mask);
  if (outcome != Outcome::kNext || mask == kAllLanes) return outcome;
  Report(w, s, __builtin_ctz(~mask & kAllLanes),
         "all 32 threads of the warp must take part; this one does not");
  return Outcome::kFault;
}

// 8 × 8 matrices of 16-bit elements; lanes 8k to 8k+7 hold the addresses of the rows of matrix k.
template <bool is_load>
Outcome Matrices(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  int count = i.operand_count - 1;
  uint32_t address = is_load ? static_cast<uint32_t>(count) : 0;
  bool trans = i.Has(Mod::kTrans);
  for (int m = 0; m < count; ++m) {
    uint16_t elements[8][8] = {};
    uint8_t* rows[8];
    for (int row = 0; row < 8; ++row) {
      int lane = 8 * m + row;
      rows[row] = LocateLane(w, s, lane, s.space, AddressOf(w, s, address, lane), 16,
                             is_load ? Access::kRead : Access::kWrite);
      if (rows[row] == nullptr) return Outcome::kFault;
      if (is_load) std::memcpy(elements[row], rows[row], 16);
    }
    const auto* source = w.In<uint32_t>(s.args[is_load ? 0 : 1 + m]);
    auto* target = is_load ? w.Out<uint32_t>(s.args[m]) : nullptr;
    for (int lane = 0; lane < kLanes; ++lane) {
      int row = lane / 4, column = lane % 4 * 2;
      uint16_t& first = trans ? elements[column][row] : elements[row][column];
      uint16_t& second = trans ? elements[column + 1][row] : elements[row][column + 1];
      if (is_load) {
        target[lane] = first | uint32_t{second} << 16;
      } else {
        first = static_cast<uint16_t>(source[lane]);
        second = static_cast<uint16_t>(source[lane] >> 16);
      }
    }
    for (int row = 0; row < 8 && !is_load; ++row) std::memcpy(rows[row], elements[row], 16);
  }
  return Outcome::kNext;
}

// The transpose of an 8 x 8 matrix that the lanes hold.
Outcome Movmatrix(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  uint32_t a[kLanes];
  std::memcpy(a, w.In<uint32_t>(s.args[1]), sizeof a);
  auto* d = w.Out<uint32_t>(s.args[0]);
  auto element = [&](int row, int column) {
    return a[4 * row + column / 2] >> (16 * (column % 2)) & 0xFFFF;
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    int row = lane / 4, column = lane % 4 * 2;
    d[lane] = element(column, row) | element(column + 1, row) << 16;
  }
  return Outcome::kNext;
}

template <class T>
double Element(uint32_t bits, int half) {
  if constexpr (sizeof(T) == 4) {
    (void)half;
    return BitCast<float>(bits & 0xFFFFE000);  // .tf32
  } else {
    return ToDouble(T{static_cast<uint16_t>(bits >> (16 * half))});
  }
}

// D = A · B + C with A 16 × k, B k × 8, C and D 16 × 8.
template <class T>
Outcome Mma(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = WholeWarp(w, s, mask); outcome != Outcome::kNext) return outcome;
  const Instruction& i = *s.source;
  bool is_f16 = i.type[0] == Type::kF16;
  constexpr int kPerRegister = 4 / sizeof(T);  // elements of a register
  int d_registers = is_f16 ? 2 : 4;
  int k = i.Has(Mod::kM16n8k16) ? 16 : 8;
  int a_registers = 16 * k / kLanes / kPerRegister, b_registers = 8 * k / kLanes / kPerRegister;
  const uint32_t* a_args = s.args + d_registers;
  const uint32_t* b_args = a_args + a_registers;
  const uint32_t* c_args = b_args + b_registers;
  static thread_local Factors x;
  for (int lane = 0; lane < kLanes; ++lane) {
    int group = lane / 4, within = lane % 4;
    for (int r = 0; r < a_registers; ++r) {
      // Registers go down eight rows first, then to the next columns.
      for (int h = 0; h < kPerRegister; ++h) {
        int row = group + 8 * (r % 2),
            column = kPerRegister * within + h + 4 * kPerRegister * (r / 2);
        x.a[row][column] = Element<T>(w.In<uint32_t>(a_args[r])[lane], h);
      }
    }
    for (int r = 0; r < b_registers; ++r) {
      for (int h = 0; h < kPerRegister; ++h) {
        int row = kPerRegister * within + h + 4 * kPerRegister * r;
        x.b[row][group] = Element<T>(w.In<uint32_t>(b_args[r])[lane], h);
      }
    }
    for (int e = 0; e < 4; ++e) {
      double& element = x.c[group + 8 * (e / 2)][2 * within + e % 2];
      element = is_f16 ? Element<F16>(w.In<uint32_t>(c_args[e / 2])[lane], e % 2)
                       : BitCast<float>(w.In<uint32_t>(c_args[e])[lane]);
    }
  }
  MultiplyFloats(i, 16, k, &x);
  for (int lane = 0; lane < kLanes; ++lane) {
    int group = lane / 4, within = lane % 4;
    double sums[4];
    for (int e = 0; e < 4; ++e) {
      int row = group + 8 * (e / 2), column = 2 * within + e % 2;
      sums[e] = x.c[row][column];
    }
    for (int r = 0; r < d_registers; ++r) {
      w.Out<uint32_t>(s.args[r])[lane] =
          is_f16 ? ToF16(sums[2 * r]).bits | uint32_t{ToF16(sums[2 * r + 1]).bits} << 16
                 : BitCast<uint32_t>(Canonical(static_cast<float>(sums[r])));
    }
  }
  return Outcome::kNext;
}

}  // namespace

Handler SelectMatrix(const Instruction& i) {
  switch (i.op) {
    case Op::kLdmatrix:
      return Matrices<true>;
    case Op::kStmatrix:
      return Matrices<false>;
    case Op::kMovmatrix:
      return Movmatrix;
    case Op::kMma:
      if (i.type[1] == Type::kTF32) return Mma<float>;
      return i.type[1] == Type::kBF16 ? Mma<BF16> : Mma<F16>;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
