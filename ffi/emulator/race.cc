#include "emulator/race.h"

#include <algorithm>
#include <cstring>

#include "emulator/compile.h"
#include "emulator/monitor.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Space;

constexpr uint32_t kListBit = 0x80000000;
constexpr uint32_t kMostRecords = 1 << 26;  // what a handle has room for
constexpr size_t kRecent = 1 << 12;
constexpr size_t kMostEntries = 64;  // of one granule

// The bytes that one access of the instruction moves, or 0.
uint64_t AccessBytes(const Instruction& i) {
  switch (i.op) {
    case Op::kLd:
    case Op::kSt:
    case Op::kAtom:
    case Op::kRed:
    case Op::kStAsync:
    case Op::kRedAsync:
      return i.vector * ptx::Bytes(i.type[0]);
    case Op::kCpAsync:
      return 4;
    case Op::kWmmaLoad:
    case Op::kWmmaStore:
      return std::max(ptx::Bytes(i.type[0]), 1u);
    case Op::kCpAsyncBulk:
    case Op::kCpReduceBulk:
    case Op::kLdmatrix:
    case Op::kStmatrix:
      return 16;
    case Op::kMbarrier:
    case Op::kStBulk:
      return 8;
    default:
      return 0;
  }
}

bool CompletesAlone(const Instruction& i) {
  return i.op == Op::kCpAsyncBulk || i.op == Op::kStAsync || i.op == Op::kRedAsync ||
         (i.op == Op::kMbarrierArrive && i.Has(Mod::kRelaxed));
}

int Shift(const Program& program, Space space) {
  uint64_t least = 16;
  for (const Step& step : program.steps) {
    const Instruction& i = *step.source;
    // A copy has two addresses, and a generic one may mean either.
    bool is_copy = i.op == Op::kCpAsync || i.op == Op::kCpAsyncBulk || i.op == Op::kCpReduceBulk;
    bool is_other = i.space != space && i.space != Space::kNone && !is_copy;
    uint64_t bytes = is_other ? 0 : AccessBytes(i);
    if (bytes != 0) least = std::min(least, bytes);
  }
  return __builtin_ctzll(least);
}

// The value that a lane of a plain store writes.
void StoredBytes(const Warp& w, const Step& s, int lane, uint8_t* bytes) {
  size_t size = ptx::Bytes(s.source->type[0]);
  for (uint32_t e = 0; e < s.vector; ++e) {
    if (size == 8) {
      std::memcpy(bytes + e * size, w.In<uint64_t>(s.args[1 + e]) + lane, size);
    } else {
      std::memcpy(bytes + e * size, w.In<uint32_t>(s.args[1 + e]) + lane, size);
    }
  }
}

}  // namespace

Race::Race(const Launch& launch, Monitor& monitor)
    : launch_(launch),
      monitor_(monitor),
      order_(launch),
      shared_shift_(Shift(*launch.program, Space::kShared)),
      global_shift_(Shift(*launch.program, Space::kGlobal)),
      records_(1),
      recent_(kRecent) {
  std::vector<const Region*> regions;
  for (const Region& region : launch.tensors) regions.push_back(&region);
  for (const Region& region : launch.variables) regions.push_back(&region);
  for (const Region* region : regions) {
    auto same = std::find_if(regions.begin(), regions.end(), [&](const Region* other) {
      return other == region || (other->host == region->host && other->is_writable);
    });
    cells_of_.push_back(static_cast<size_t>(same - regions.begin()));
    regions_.push_back(region->is_writable ? MakeCells(region->begin, region->end, global_shift_)
                                           : Cells());
  }
}

Race::Cells Race::MakeCells(uint64_t begin, uint64_t end, int shift) const {
  Cells cells;
  cells.first = begin >> shift;
  cells.count = end == begin ? 1 : ((end - 1) >> shift) - cells.first + 1;
  // calloc: pages that nobody touches cost nothing.
  cells.cells.reset(static_cast<Cell*>(std::calloc(cells.count, sizeof(Cell))));
  if (cells.cells == nullptr) throw std::bad_alloc();
  return cells;
}

void Race::Start(Cluster& cluster) {
  cluster_ = cluster.index;
  order_.Start(cluster);
  shared_.resize(cluster.ctas.size());
  for (Cells& cells : shared_) {
    if (cells.cells == nullptr) cells = MakeCells(0, launch_.shared_bytes, shared_shift_);
    for (uint64_t i = 0; i < cells.count; ++i) {
      Free(cells.cells[i].write);
      Free(cells.cells[i].read);
    }
  }
}

void Race::TouchShared(Warp& w, const Step& s, const Touch& touch, uint32_t mask, size_t rank) {
  shift_ = shared_shift_;
  Visit(w, s, touch, mask, shared_[rank].cells.get(), 0, true);
}

void Race::TouchRegion(Warp& w, const Step& s, const Touch& touch, uint32_t mask, size_t region) {
  if (regions_[region].cells == nullptr) return;  // nobody can write it
  shift_ = global_shift_;
  Visit(w, s, touch, mask, regions_[cells_of_[region]].cells.get(), regions_[region].first, false);
}

void Race::Visit(Warp& w, const Step& s, const Touch& touch, uint32_t mask, Cell* cells,
                 uint64_t first, bool is_shared) {
  const Instruction& i = *s.source;
  bool is_copy = touch.access == Access::kCopyRead || touch.access == Access::kCopyWrite;
  uint8_t scope = StrengthOf(i).scope;
  // Asynchronous reductions are atomic at each element, other copies weak.
  if (is_copy) scope = i.op == Op::kCpReduceBulk || i.op == Op::kRedAsync ? 3 : 0;
  // Operations on an mbarrier are atomic; that it has been made must be known by other means.
  // Copies that will complete on it, and relaxed arrivals, tell those who wait of nothing else that
  // their thread has done.
  bool is_mbarrier = touch.access == Access::kMbarrier;
  bool tells_nothing_else = is_mbarrier && CompletesAlone(i);
  is_copy |= tells_nothing_else;
  if (is_mbarrier) scope = i.Has(Mod::kInit) || i.Has(Mod::kInval) ? 0 : 3;
  Attempt attempt{w, s, touch, scope, IsWrite(touch.access), is_copy};
  uint64_t address_mask = is_shared ? (uint64_t{1} << kSharedRankShift) - 1 : ~uint64_t{0};
  bool is_broadcast = touch.places->stride == 0 && !attempt.is_write && scope == 0;
  uint32_t granules = std::max(1u, touch.bytes >> shift_), record = 0, clock = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    uint32_t thread = order_.SlotOf(w, lane);
    if (tells_nothing_else) order_.BeginCopy(Order::Copier::kMbarrier, thread, touch.place(lane));
    if (record == 0 || order_.Now(thread).clock != clock || is_copy) {
      clock = order_.Now(thread).clock;
      record = RecordOf(attempt, lane);
      if (record == 0) return;
    }
    uint64_t granule = ((touch.address[lane] & address_mask) >> shift_) - first;
    for (uint32_t g = 0; g < granules; ++g) {
      Check(attempt, cells[granule + g], record, lane, is_broadcast ? mask : 1u << lane,
            g << shift_);
    }
    if (is_broadcast) break;
    if (scope != 0 && !is_mbarrier && !is_copy)
      order_.Synchronize(thread, touch.place(lane), is_shared, touch.access, i);
  }
}

// The granule `offset` bytes into the access of `lane`, and of the other `lanes` if they read it
// too.
void Race::Check(const Attempt& attempt, Cell& cell, uint32_t record, int lane, uint32_t lanes,
                 uint32_t offset) {
  Handle own = record << 5 | (attempt.is_copy ? 0 : static_cast<uint32_t>(lane));
  bool is_alone = (lanes & (lanes - 1)) == 0;
  if (cell.write == 0 && cell.read == 0 && is_alone) {
    (attempt.is_write ? cell.write : cell.read) = own;
    return;
  }
  bool is_clean = cell.write == own;
  for (uint32_t rest = lanes; rest != 0 && !is_clean; rest &= rest - 1) {
    if (!CheckAll(attempt, cell.write, true, __builtin_ctz(rest), offset)) break;
    is_clean = (rest & (rest - 1)) == 0;
  }
  if (attempt.is_write && is_clean) CheckAll(attempt, cell.read, false, lane, offset);
  if (attempt.is_write && attempt.scope == 0) {
    Free(cell.write);
    Free(cell.read);
    cell.write = own;
    return;
  }
  Handle& set = attempt.is_write ? cell.write : cell.read;
  if (set == own && is_alone) return;
  uint32_t new_lanes = attempt.is_copy ? 1 : lanes;
  if ((set & kListBit) != 0) {  // in a loop around an atomic, say
    for (const Entry& entry : lists_[set & ~kListBit]) {
      if (entry.record == record && (entry.lanes & new_lanes) == new_lanes) return;
    }
  }
  Entries entries = EntriesOf(set), kept;
  uint32_t thread = order_.SlotOf(attempt.warp, lane);
  for (const Entry& entry : entries) {
    if (entry.record == record) {
      new_lanes |= entry.lanes;
      continue;
    }
    // What came before this access need not be looked at any more: who comes behind it is behind
    // that too. With several lanes, each must be behind it. But a strong access need not come
    // behind another strong one, and so must still be held against weaker ones.
    if (records_[entry.record].scope < attempt.scope) {
      kept.push_back(entry);
      continue;
    }
    uint32_t open = 0;
    for (uint32_t rest = entry.lanes; rest != 0; rest &= rest - 1) {
      auto other = static_cast<uint32_t>(__builtin_ctz(rest));
      bool is_before = true;
      for (uint32_t own_lanes = lanes; own_lanes != 0 && is_before; own_lanes &= own_lanes - 1) {
        uint32_t behind =
            thread - static_cast<uint32_t>(lane) + static_cast<uint32_t>(__builtin_ctz(own_lanes));
        is_before = IsBefore(records_[entry.record], other, behind);
      }
      if (!is_before) open |= 1u << other;
    }
    if (open != 0) kept.push_back({entry.record, open});
  }
  kept.push_back({record, new_lanes});
  // Thousands of unordered atomics need not all be known; the first one may be what they all
  // missed.
  if (kept.size() > kMostEntries) kept.erase(kept.begin() + 1);
  set = Keep(set, std::move(kept));
}

// False: the access races with one of the handle's, which has been reported.
bool Race::CheckAll(const Attempt& attempt, Handle handle, bool was_write, int lane,
                    uint32_t offset) {
  if (handle == 0) return true;
  uint32_t thread = order_.SlotOf(attempt.warp, lane);
  auto check = [&](uint32_t index, uint32_t other) {
    const Record& record = records_[index];
    if (IsBefore(record, other, thread) || AreStrong(record, attempt)) return true;
    if (was_write && WritesTheSame(attempt, index, other, lane, offset)) return true;
    Report(attempt, record, other, was_write, lane, offset);
    return false;
  };
  if ((handle & kListBit) == 0) return check(handle >> 5, handle & 31);
  for (const Entry& entry : lists_[handle & ~kListBit]) {
    if (AreStrong(records_[entry.record], attempt)) continue;
    for (uint32_t rest = entry.lanes; rest != 0; rest &= rest - 1) {
      if (!check(entry.record, static_cast<uint32_t>(__builtin_ctz(rest)))) return false;
    }
  }
  return true;
}

bool Race::IsBefore(const Record& record, uint32_t lane, uint32_t thread) const {
  Epoch epoch = record.first;
  epoch.slot += lane;
  return order_.IsBefore(epoch, thread);
}

bool Race::AreStrong(const Record& record, const Attempt& attempt) const {
  int least = std::min(record.scope, attempt.scope);
  if (least == 0) return false;
  if (record.first.cluster != cluster_) return least == 3;
  return least >= 2 || order_.RankOf(record.thread) == attempt.warp.cta->rank;
}

bool Race::WritesTheSame(const Attempt& attempt, uint32_t record, uint32_t other, int lane,
                         uint32_t offset) const {
  const Touch& touch = attempt.touch;
  if (touch.access != Access::kWrite || attempt.step.source->op != Op::kSt) return false;
  if (touch.bytes > 32) return false;
  uint8_t own[32], theirs[32];
  size_t granule = size_t{1} << shift_;
  StoredBytes(attempt.warp, attempt.step, lane, own);
  const Record& same = records_[record];
  auto own_step = static_cast<uint32_t>(&attempt.step - launch_.program->steps.data());
  bool is_this_step = same.step == own_step && same.first.cluster == cluster_ &&
                      same.thread == order_.SlotOf(attempt.warp, 0);
  uint64_t address = touch.address[lane] + offset;
  if (is_this_step && (touch.mask >> other & 1) != 0 && touch.address[other] <= address &&
      address < touch.address[other] + touch.bytes) {
    // The other lane writes in this very step: memory does not show it yet.
    StoredBytes(attempt.warp, attempt.step, static_cast<int>(other), theirs);
    return std::memcmp(own + offset, theirs + (address - touch.address[other]), granule) == 0;
  }
  return std::memcmp(own + offset, touch.place(lane) + offset, granule) == 0;
}

uint32_t Race::RecordOf(const Attempt& attempt, int lane) {
  uint32_t thread = order_.SlotOf(attempt.warp, lane);
  Record record;
  if (attempt.is_copy) {
    record.first = order_.Now(attempt.is_write ? order_.WriteSlot() : order_.ReadSlot());
    record.thread = thread;
  } else {
    record.first = order_.Now(thread);
    record.first.slot -= static_cast<uint32_t>(lane);
    record.thread = thread - static_cast<uint32_t>(lane);
  }
  record.step = static_cast<uint32_t>(&attempt.step - launch_.program->steps.data());
  record.scope = attempt.scope;
  record.is_copy = attempt.is_copy;
  uint64_t hash = (uint64_t{record.first.slot} * 0x9E3779B1 + record.first.clock) * 0x85EBCA6B +
                  record.step * 0xC2B2AE35;
  uint32_t& recent = recent_[hash >> 7 & (kRecent - 1)];
  const Record& known = records_[recent];
  bool is_same = recent != 0 && known.first.cluster == record.first.cluster &&
                 known.first.slot == record.first.slot && known.first.clock == record.first.clock &&
                 known.step == record.step && known.thread == record.thread &&
                 known.is_copy == record.is_copy;
  if (is_same) return recent;
  if (records_.size() == kMostRecords) {
    Finding finding = MakeFinding(attempt.warp, attempt.step, lane, Kind::kInvalid,
                                  "the race check ends here: it has room for 67108864 accesses");
    monitor_.Add(std::move(finding), attempt.step, attempt.step);
    return 0;
  }
  recent = static_cast<uint32_t>(records_.size());
  records_.push_back(record);
  return recent;
}

Race::Entries Race::EntriesOf(Handle handle) const {
  if (handle == 0) return {};
  if ((handle & kListBit) != 0) return lists_[handle & ~kListBit];
  return {{handle >> 5, 1u << (handle & 31)}};
}

Race::Handle Race::Keep(Handle old, Entries entries) {
  bool is_single = entries.size() == 1 && (entries[0].lanes & (entries[0].lanes - 1)) == 0;
  if (is_single) {
    Free(old);
    return entries[0].record << 5 | static_cast<uint32_t>(__builtin_ctz(entries[0].lanes));
  }
  if ((old & kListBit) != 0) {
    lists_[old & ~kListBit] = std::move(entries);
    return old;
  }
  if (free_lists_.empty()) {
    lists_.push_back(std::move(entries));
    return static_cast<uint32_t>(lists_.size() - 1) | kListBit;
  }
  uint32_t index = free_lists_.back();
  free_lists_.pop_back();
  lists_[index] = std::move(entries);
  return index | kListBit;
}

void Race::Free(Handle& handle) {
  if ((handle & kListBit) != 0) {
    lists_[handle & ~kListBit].clear();
    free_lists_.push_back(handle & ~kListBit);
  }
  handle = 0;
}

}  // namespace jax_ptx::emulator
