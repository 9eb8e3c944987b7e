// ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5): a warp holds a matrix of 16-bit elements,
// two a lane and register.
#include "emulator/matrix.h"

#include <cstring>

#include "emulator/handlers.h"
#include "emulator/memory.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {

Outcome WholeWarp(Warp& w, const Step& s, uint32_t mask) {
  Outcome outcome = GatherAll(w, kAllLanes, mask);
  if (outcome != Outcome::kNext || mask == kAllLanes) return outcome;
  Report(w, s, __builtin_ctz(~mask & kAllLanes),
         "all 32 threads of the warp must take part; this one does not", Kind::kInactiveLane);
  return Outcome::kFault;
}

namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;

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
    uint64_t addresses[kLanes];
    Places rows;
    for (int row = 0; row < 8; ++row) {
      addresses[8 * m + row] = AddressOf(w, s, address, 8 * m + row);
    }
    if (!LocateLanes(w, s, 0xFFu << (8 * m), s.space, addresses, 16,
                     is_load ? Access::kRead : Access::kWrite, &rows)) {
      return Outcome::kFault;
    }
    for (int row = 0; row < 8 && is_load; ++row) {
      std::memcpy(elements[row], rows.lane[8 * m + row], 16);
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
    for (int row = 0; row < 8 && !is_load; ++row)
      std::memcpy(rows.lane[8 * m + row], elements[row], 16);
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
      return SelectMma(i);
    case Op::kWmmaLoad:
    case Op::kWmmaStore:
    case Op::kWmmaMma:
      return SelectWmma(i);
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
