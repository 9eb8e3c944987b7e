#include "emulator/registers.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace jax_ptx::emulator {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::kNone;
using ptx::Op;
using ptx::Operand;

constexpr uint64_t kMaxWords = 1 << 18;  // of liveness; a larger function shares nothing

using Set = std::vector<uint64_t>;

struct Block {
  uint32_t begin, end;  // instructions
  std::vector<uint32_t> successors;
  Set used, defined;  // used before it is defined; defined whatever the guards
  Set live_in, live_out;
};

bool IsWide(const Function& function, uint32_t r) { return ptx::Bits(function.registers[r]) == 64; }

// Calls f(register, is_destination).
template <class F>
void ForRegisters(const Function& function, const Instruction& i, F f) {
  for (uint32_t k = 0; k < i.operand_count; ++k) {
    const Operand& operand = function.operands[i.first_operand + k];
    bool is_address = operand.kind == Operand::Kind::kAddress && operand.index != kNone;
    if (is_address) f(operand.index, false);
    if (operand.kind == Operand::Kind::kRegister) f(operand.index, operand.is_destination);
  }
}

bool EndsThread(const Instruction& i) {
  return i.op == Op::kRet || i.op == Op::kExit || i.op == Op::kTrap;
}

std::vector<Block> FindBlocks(const Function& function) {
  const auto& code = function.code;
  auto size = static_cast<uint32_t>(code.size());
  std::vector<bool> begins(size + 1, false);
  begins[0] = true;
  auto targets = [&](const Instruction& i) {
    if (i.op == Op::kBrx) return function.tables[i.target];
    return i.op == Op::kBra ? std::vector<uint32_t>{i.target} : std::vector<uint32_t>{};
  };
  for (uint32_t p = 0; p < size; ++p) {
    bool is_jump = code[p].op == Op::kBra || code[p].op == Op::kBrx;
    if (is_jump || EndsThread(code[p])) begins[p + 1] = true;
    for (uint32_t target : targets(code[p])) begins[target] = true;
  }
  std::vector<Block> blocks;
  std::vector<uint32_t> block_of(size + 1, 0);
  for (uint32_t p = 0; p < size; ++p) {
    if (begins[p]) blocks.push_back({p, p, {}, {}, {}, {}, {}});
    block_of[p] = static_cast<uint32_t>(blocks.size() - 1);
    blocks.back().end = p + 1;
  }
  for (Block& block : blocks) {
    const Instruction& last = code[block.end - 1];
    bool is_jump = last.op == Op::kBra || last.op == Op::kBrx;
    bool goes_on = last.guard != kNone || (!is_jump && !EndsThread(last));
    if (goes_on && block.end < size) block.successors.push_back(block_of[block.end]);
    for (uint32_t target : targets(last)) {
      if (target < size) block.successors.push_back(block_of[target]);
    }
  }
  return blocks;
}

void FindLiveness(const Function& function, std::vector<Block>& blocks) {
  size_t words = (function.registers.size() + 63) / 64;
  auto has = [](const Set& set, uint32_t r) { return (set[r / 64] >> (r % 64) & 1) != 0; };
  auto add = [](Set& set, uint32_t r) { set[r / 64] |= uint64_t{1} << (r % 64); };
  for (Block& block : blocks) {
    for (Set* set : {&block.used, &block.defined, &block.live_in, &block.live_out})
      set->assign(words, 0);
    for (uint32_t p = block.begin; p < block.end; ++p) {
      const Instruction& i = function.code[p];
      ForRegisters(function, i, [&](uint32_t r, bool is_destination) {
        if (!is_destination && !has(block.defined, r)) add(block.used, r);
      });
      if (i.guard != kNone) continue;  // may leave the old value
      ForRegisters(function, i, [&](uint32_t r, bool is_destination) {
        if (is_destination) add(block.defined, r);
      });
    }
    block.live_in = block.used;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      Block& block = blocks[b];
      for (uint32_t next : block.successors) {
        for (size_t k = 0; k < words; ++k) block.live_out[k] |= blocks[next].live_in[k];
      }
      for (size_t k = 0; k < words; ++k) {
        uint64_t live = block.used[k] | (block.live_out[k] & ~block.defined[k]);
        changed |= live != block.live_in[k];
        block.live_in[k] = live;
      }
    }
  }
}

RegisterSlots ShareNothing(const Function& function) {
  RegisterSlots slots;
  for (uint32_t r = 0; r < function.registers.size(); ++r) {
    slots.slot.push_back(IsWide(function, r) ? slots.wide++ : slots.narrow++);
  }
  return slots;
}

}  // namespace

RegisterSlots ShareRegisters(const Function& function) {
  size_t count = function.registers.size();
  if (count == 0 || function.code.empty()) return ShareNothing(function);
  std::vector<Block> blocks = FindBlocks(function);
  if (blocks.size() * ((count + 63) / 64) > kMaxWords) return ShareNothing(function);
  FindLiveness(function, blocks);

  // From the first place in the text to the last where the register is in use.
  std::vector<uint32_t> first(count, kNone), last(count, 0);
  auto extend = [&](size_t r, uint32_t place) {
    first[r] = std::min(first[r], place);
    last[r] = std::max(last[r], place);
  };
  for (const Block& block : blocks) {
    for (uint32_t p = block.begin; p < block.end; ++p) {
      ForRegisters(function, function.code[p], [&](uint32_t r, bool) { extend(r, p); });
    }
    for (size_t r = 0; r < count; ++r) {
      if ((block.live_in[r / 64] >> (r % 64) & 1) != 0) extend(r, block.begin);
      if ((block.live_out[r / 64] >> (r % 64) & 1) != 0) extend(r, block.end - 1);
    }
  }

  RegisterSlots slots;
  slots.slot.assign(count, 0);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return first[a] < first[b]; });
  using Busy = std::pair<uint32_t, uint32_t>;  // until when, slot
  for (bool wide : {false, true}) {
    uint32_t& total = wide ? slots.wide : slots.narrow;
    std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
    for (uint32_t r : order) {
      if (IsWide(function, r) != wide) continue;
      uint32_t slot = total;
      if (first[r] == kNone) {  // never used: any place will do
        slots.slot[r] = 0;
        total = std::max(total, 1u);
        continue;
      }
      if (!busy.empty() && busy.top().first < first[r]) {
        slot = busy.top().second;
        busy.pop();
      } else {
        ++total;
      }
      slots.slot[r] = slot;
      busy.emplace(last[r], slot);
    }
  }
  return slots;
}

}  // namespace jax_ptx::emulator
