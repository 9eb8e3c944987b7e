#include "emulator/count.h"

#include <algorithm>

#include "emulator/compile.h"

namespace jax_ptx::emulator {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kBanks = 32;
constexpr uint64_t kBankBytes = 4;

Direction DirectionOf(Access access) {
  if (access == Access::kAtomic) return Direction::kAtomic;
  return IsWrite(access) ? Direction::kWrite : Direction::kRead;
}

bool IsContiguous(const Touch& touch, uint32_t mask) {
  return mask == kAllLanes && touch.places->stride == touch.bytes;
}

// The different addresses of the lanes, ascending. Returns how many there are.
int Distinct(const Touch& touch, uint32_t mask, uint64_t unit, uint64_t* values) {
  int count = 0;
  for (; mask != 0; mask &= mask - 1) values[count++] = touch.address[__builtin_ctz(mask)] / unit;
  std::sort(values, values + count);
  return static_cast<int>(std::unique(values, values + count) - values);
}

}  // namespace

Counts::Counts(const Program& program) : program_(program), counts_(program.steps.size()) {}

void Counts::Executed(const Step& step, uint32_t mask) {
  Count& count = counts_[static_cast<size_t>(&step - program_.steps.data())];
  ++count.warps;
  count.threads += static_cast<uint64_t>(__builtin_popcount(mask));
}

void Counts::Touched(const Step& step, const Touch& touch, uint32_t mask, Memory memory) {
  bytes_[static_cast<int>(memory)][static_cast<int>(DirectionOf(touch.access))] +=
      uint64_t{touch.bytes} * static_cast<uint64_t>(__builtin_popcount(mask));
  // Copies by hardware units move whole sectors; an mbarrier is one word.
  bool is_plain = touch.access == Access::kRead || touch.access == Access::kWrite ||
                  touch.access == Access::kAtomic;
  if (!is_plain) return;
  Count& count = counts_[static_cast<size_t>(&step - program_.steps.data())];
  if (memory == Memory::kGlobal) CountSectors(touch, mask, &count);
  if (memory == Memory::kShared) CountConflicts(touch, mask, &count);
}

void Counts::CountSectors(const Touch& touch, uint32_t mask, Count* count) const {
  uint64_t values[kLanes];
  if (IsContiguous(touch, mask)) {
    uint64_t first = touch.address[0], end = first + uint64_t{kLanes} * touch.bytes;
    count->sectors += (end + kSectorBytes - 1) / kSectorBytes - first / kSectorBytes;
    count->least_sectors += uint64_t{kLanes} * touch.bytes / kSectorBytes;
    return;
  }
  // An access is aligned and has at most 32 bytes: it lies in one sector.
  uint64_t bytes = uint64_t{touch.bytes} * static_cast<uint64_t>(Distinct(touch, mask, 1, values));
  count->least_sectors += (bytes + kSectorBytes - 1) / kSectorBytes;
  count->sectors += static_cast<uint64_t>(Distinct(touch, mask, kSectorBytes, values));
}

// Accesses of 8 bytes are served a half of the warp at a time, of 16 bytes a quarter. A pass gives
// one word of each bank, to as many lanes as want it.
void Counts::CountConflicts(const Touch& touch, uint32_t mask, Count* count) const {
  if (IsContiguous(touch, mask)) return;
  int lanes_at_once = touch.bytes <= kBankBytes ? kLanes : static_cast<int>(128 / touch.bytes);
  for (int first = 0; first < kLanes; first += lanes_at_once) {
    uint32_t group = mask >> first;
    if (lanes_at_once < kLanes) group &= (1u << lanes_at_once) - 1;
    if (group == 0) continue;
    uint64_t words[kLanes];
    int n = Distinct(touch, group << first, std::max<uint64_t>(touch.bytes, kBankBytes), words);
    uint64_t banks_of_one = std::max<uint64_t>(touch.bytes / kBankBytes, 1);
    uint32_t passes[kBanks] = {}, most = 0;
    for (int i = 0; i < n; ++i) {
      most = std::max(most, ++passes[words[i] * banks_of_one % kBanks]);
    }
    count->conflicts += most - 1;
  }
}

void Counts::Report(Observation* observation) const {
  for (int memory = 0; memory < kMemories; ++memory) {
    for (int direction = 0; direction < kDirections; ++direction) {
      observation->bytes[memory][direction] += bytes_[memory][direction];
    }
  }
  auto& out = observation->instructions;
  const ptx::Instruction* last = nullptr;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const ptx::Instruction* source = program_.steps[i].source;
    const Count& count = counts_[i];
    if (source->line == 0) continue;  // the end of a body, which no text stands for
    if (source != last) {             // of an instruction in several steps, the first tells
      out.push_back({source->line, source->text, count.warps, count.threads, 0, 0, 0});
    }
    last = source;
    out.back().sectors += count.sectors;
    out.back().least_sectors += count.least_sectors;
    out.back().conflicts += count.conflicts;
  }
}

}  // namespace jax_ptx::emulator
