// mbarrier and cp.async (PTX ISA 9.7.13.15, 9.7.9.25). A copy is done when it is issued: the
// weakest order that the ISA allows lets it complete at any time up to the wait.
#include "emulator/async.h"

#include <algorithm>

#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/memory.h"
#include "emulator/order.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Space;

// An mbarrier object, as its 64 bits in shared memory hold it: phase, arrivals expected in each
// phase, arrivals that are pending in this one, and bytes that are still to come (they may run
// ahead, so they have a sign).
struct Mbarrier {
  uint64_t phase : 1, valid : 1, expected : 20, pending : 20;
  int64_t bytes : 22;
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is a .b64");
constexpr uint32_t kMaxArrivals = (1 << 20) - 1;
constexpr int64_t kMaxPendingBytes = (1 << 20) - 1;

Mbarrier LoadMbarrier(const uint8_t* place) {
  Mbarrier barrier;
  std::memcpy(&barrier, place, sizeof barrier);
  return barrier;
}

// Looks whether the phase is over, writes the object back, and lets those who wait look again.
void StoreMbarrier(Warp& w, uint8_t* place, Mbarrier barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
    if (Order* order = w.cta->cluster->order) order->Complete(place, /*keeps_older=*/true);
    for (Cta& cta : w.cta->cluster->ctas) {
      for (Warp& other : cta.warps) {
        if (other.mbarrier_wait == 0) continue;
        other.blocked &= ~other.mbarrier_wait;
        other.mbarrier_wait = 0;
        other.stop = 0;  // choose anew which lanes run
      }
    }
  }
  std::memcpy(place, &barrier, sizeof barrier);
}

}  // namespace

uint64_t AsyncAddress(const Warp& w, const uint32_t* args, int lane) {
  uint64_t offset = uint64_t{args[3]} << 32 | args[2];
  if (args[1] != 0) return w.In<uint64_t>(args[0])[lane] + offset;
  return static_cast<uint32_t>(w.In<uint32_t>(args[0])[lane] + static_cast<uint32_t>(offset));
}

uint8_t* FindMbarrier(Warp& w, const Step& s, int lane, uint64_t address, bool must_be_valid) {
  Space space = address >> kSlotBits == kSharedSlot ? Space::kNone : Space::kShared;
  uint8_t* place = LocateLane(w, s, lane, space, address, 8, Access::kMbarrier);
  if (place == nullptr || !must_be_valid) return place;
  Mbarrier barrier = LoadMbarrier(place);
  uint64_t bits;
  std::memcpy(&bits, place, sizeof bits);
  if (bits != ~uint64_t{0} && barrier.valid != 0) return place;
  Report(w, s, lane,
         "there is no mbarrier at shared address " + Hex(address & 0xFFFFFFFF) +
             ": mbarrier.init has not run, or mbarrier.inval has");
  return nullptr;
}

bool AddBytes(Warp& w, const Step& s, int lane, uint8_t* place, int64_t bytes) {
  Mbarrier barrier = LoadMbarrier(place);
  int64_t total = barrier.bytes + bytes;
  if (total > kMaxPendingBytes || total < -kMaxPendingBytes) {
    Report(w, s, lane, "the mbarrier's transaction count leaves its range of 2^20 - 1 bytes");
    return false;
  }
  barrier.bytes = total;
  StoreMbarrier(w, place, barrier);
  return true;
}

std::string DescribeMbarrier(const Warp& w, const Step& s, int lane) {
  const Cluster& cluster = *w.cta->cluster;
  uint64_t address = AsyncAddress(w, s.args + 1, lane);
  uint64_t rank = address >> kSharedRankShift & 0xFF;
  uint64_t offset = address & ((uint64_t{1} << kSharedRankShift) - 1);
  if (rank > cluster.ctas.size() || offset + 8 > cluster.launch->shared_bytes) return {};
  Mbarrier barrier = LoadMbarrier((rank == 0 ? *w.cta : cluster.ctas[rank - 1]).shared + offset);
  int64_t bytes = barrier.bytes;
  std::string text = "The mbarrier at " + MeaningOf(w, Space::kShared, address).text +
                     " is in a phase of parity " + std::to_string(barrier.phase) + ", with " +
                     std::to_string(barrier.pending) + " of " + std::to_string(barrier.expected) +
                     " arrivals and " + Bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))) +
                     " pending";
  if (bytes > 0) {
    text += ": expect_tx announced " + Bytes(static_cast<uint64_t>(bytes)) +
            " more than copies brought";
  } else if (bytes < 0) {
    text += ": copies brought " + Bytes(static_cast<uint64_t>(-bytes)) +
            " more than expect_tx announced";
  }
  return text + ".";
}

namespace {

// mbarrier.init, inval, expect_tx, complete_tx, pending_count.
Outcome MbarrierObject(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  if (i.Has(Mod::kPendingCount)) {
    auto* d = w.Out<uint32_t>(s.args[0]);
    const auto* state = w.In<uint64_t>(s.args[1]);
    ForLanes(mask, [=](int l) { d[l] = BitCast<Mbarrier>(state[l]).pending; });
    return Outcome::kNext;
  }
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    bool is_init = i.Has(Mod::kInit);
    uint8_t* place = FindMbarrier(w, s, lane, AsyncAddress(w, s.args, lane), !is_init);
    if (place == nullptr) return Outcome::kFault;
    if (i.Has(Mod::kInval)) {
      std::memset(place, 0xFF, 8);
      continue;
    }
    uint32_t value = w.In<uint32_t>(s.args[kAddressArgs])[lane];
    if (is_init) {
      if (value == 0 || value > kMaxArrivals) {
        Report(w, s, lane,
               "an mbarrier expects from 1 to 1048575 arrivals, not " + std::to_string(value));
        return Outcome::kFault;
      }
      Mbarrier barrier{};
      barrier.valid = 1;
      barrier.expected = barrier.pending = value;
      std::memcpy(place, &barrier, sizeof barrier);
      if (Order* order = w.cta->cluster->order) order->Forget(place);
      continue;
    }
    int64_t bytes = i.Has(Mod::kExpectTx) ? int64_t{value} : -int64_t{value};
    if (!AddBytes(w, s, lane, place, bytes)) return Outcome::kFault;
  }
  return Outcome::kNext;
}

bool Arrive(Warp& w, const Step& s, int lane, uint8_t* place, uint32_t count, int64_t bytes) {
  Mbarrier barrier = LoadMbarrier(place);
  const Instruction& i = *s.source;
  if (count > barrier.pending) {
    Report(w, s, lane,
           "more arrivals than the mbarrier expects: " + std::to_string(barrier.pending) +
               " are pending, " + std::to_string(count) + " arrive");
    return false;
  }
  if (bytes + barrier.bytes > kMaxPendingBytes) {
    Report(w, s, lane, "the mbarrier's transaction count leaves its range of 2^20 - 1 bytes");
    return false;
  }
  barrier.bytes += bytes;
  barrier.pending -= count;
  if (i.Has(Mod::kArriveDrop) && barrier.expected >= count) barrier.expected -= count;
  StoreMbarrier(w, place, barrier);
  return true;
}

// mbarrier.arrive{_drop}{.expect_tx} state, [m]{, count or bytes}.
Outcome MbarrierArrive(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool has_state = i.destination_count == 1, has_value = i.operand_count - i.destination_count == 2;
  const uint32_t* args = s.args + (has_state ? 1 : 0);
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    uint8_t* place = FindMbarrier(w, s, lane, AsyncAddress(w, args, lane), true);
    if (place == nullptr) return Outcome::kFault;
    uint32_t value = has_value ? w.In<uint32_t>(args[kAddressArgs])[lane] : 1;
    if (has_state) w.Out<uint64_t>(s.args[0])[lane] = BitCast<uint64_t>(LoadMbarrier(place));
    bool is_transaction = i.Has(Mod::kExpectTx);
    if (Order* order = w.cta->cluster->order) {
      order->Release(place, w, 1u << lane, i.Has(Mod::kRelaxed));
      if (i.Has(Mod::kRelaxed)) order->Land(place);
    }
    if (!Arrive(w, s, lane, place, is_transaction ? 1 : value, is_transaction ? value : 0)) {
      return Outcome::kFault;
    }
  }
  return Outcome::kNext;
}

// test_wait and try_wait. A try_wait that would fail blocks instead, as it may; so a wait for
// something that never comes is found as a deadlock.
Outcome MbarrierWait(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  uint32_t done = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    uint8_t* place = FindMbarrier(w, s, lane, AsyncAddress(w, s.args + 1, lane), true);
    if (place == nullptr) return Outcome::kFault;
    uint32_t state = s.args[1 + kAddressArgs];
    uint64_t phase = i.Has(Mod::kParity) ? w.In<uint32_t>(state)[lane] & 1
                                         : BitCast<Mbarrier>(w.In<uint64_t>(state)[lane]).phase;
    if (LoadMbarrier(place).phase == phase) continue;
    done |= 1u << lane;
    if (Order* order = w.cta->cluster->order)
      order->Acquire(place, w, 1u << lane, i.Has(Mod::kRelaxed));
  }
  if (i.Has(Mod::kTestWait) || done == mask) {
    w.SetPredicate(s.args[0], mask, done);
    return Outcome::kNext;
  }
  // Those that are through go on; the others look again when a phase ends.
  SavePcs(w);
  w.is_uniform = false;
  if (done != 0) {
    w.SetPredicate(s.args[0], done, done);
    if (s.write_count != 0) w.defined[s.writes[0]] |= done;
  }
  w.blocked |= mask & ~done;
  w.mbarrier_wait |= mask & ~done;
  for (uint32_t rest = w.active & ~(mask & ~done); rest != 0; rest &= rest - 1) {
    ++w.lane_pc[__builtin_ctz(rest)];
  }
  w.active = 0;
  return Outcome::kRetry;
}

// Bytes from one place to another, 16 or fewer at a time so that each is checked.
bool Copy(Warp& w, const Step& s, int lane, Space to_space, uint64_t to, Space from_space,
          uint64_t from, uint32_t bytes, uint32_t zeros_from) {
  for (uint32_t done = 0; done < bytes;) {
    uint32_t piece = std::min<uint32_t>(bytes - done, 16);
    if ((piece & (piece - 1)) != 0) piece = 4;
    uint8_t* target = LocateLane(w, s, lane, to_space, to + done, piece, Access::kCopyWrite);
    if (target == nullptr) return false;
    if (done < zeros_from) {
      uint32_t used = std::min(piece, zeros_from - done);
      // A source that is cut short is read no further than that.
      uint32_t unit = (used & (used - 1)) == 0 ? used : 1;
      for (uint32_t part = 0; part < used; part += unit) {
        uint8_t* source =
            LocateLane(w, s, lane, from_space, from + done + part, unit, Access::kCopyRead);
        if (source == nullptr) return false;
        std::memcpy(target + part, source, unit);
      }
      std::memset(target + used, 0, piece - used);
    } else {
      std::memset(target, 0, piece);
    }
    done += piece;
  }
  return true;
}

// cp.async [shared], [global], size{, source size};
Outcome CpAsync(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  const uint32_t* to = s.args;
  const uint32_t* from = s.args + kAddressArgs;
  const uint32_t* rest = s.args + 2 * kAddressArgs;
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    auto size = static_cast<uint32_t>(w.In<uint64_t>(rest[0])[lane]);
    uint32_t used = size;
    if (s.target == 1) used = w.In<uint32_t>(rest[1])[lane];
    if (s.target == 2 && (w.Predicate(rest[1]) >> lane & 1)) used = 0;
    if ((size != 4 && size != 8 && size != 16) || (i.Has(Mod::kCg) && size != 16)) {
      Report(w, s, lane, "cp.async copies 4, 8 or 16 bytes, and with .cg always 16");
      return Outcome::kFault;
    }
    uint64_t source = AsyncAddress(w, from, lane);
    if ((source & (size - 1)) != 0) {
      ReportMisaligned(w, s, lane, Space::kGlobal, source, size);
      return Outcome::kFault;
    }
    if (Order* order = w.cta->cluster->order)
      order->BeginCopy(Order::Copier::kAsync, order->SlotOf(w, lane));
    if (!Copy(w, s, lane, Space::kShared, AsyncAddress(w, to, lane), Space::kGlobal, source, size,
              std::min(used, size))) {
      return Outcome::kFault;
    }
  }
  return Outcome::kNext;
}

// cp.async{.bulk}.commit_group, wait_group n, wait_all.
Outcome Group(Warp& w, const Step& s, uint32_t mask) {
  Order* order = w.cta->cluster->order;
  if (order == nullptr) return Outcome::kNext;
  const Instruction& i = *s.source;
  bool is_bulk = i.op == Op::kCpAsyncBulkGroup;
  auto copier = is_bulk ? Order::Copier::kBulk : Order::Copier::kAsync;
  if (i.Has(Mod::kCommitGroup)) {
    order->Commit(copier, w, mask);
  } else {
    uint32_t left = i.operand_count == 0 ? ~0u : w.In<uint32_t>(s.args[0])[0];
    order->Wait(copier, w, mask, left, i.Has(Mod::kRead));
  }
  return Outcome::kNext;
}

// cp.async.mbarrier.arrive: the copies before it are done already. Without .noinc the count it
// takes is added first.
Outcome CpAsyncMbarrier(Warp& w, const Step& s, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    uint8_t* place = FindMbarrier(w, s, lane, AsyncAddress(w, s.args, lane), true);
    if (place == nullptr) return Outcome::kFault;
    if (Order* order = w.cta->cluster->order) order->LandAsync(place, order->SlotOf(w, lane));
    if (s.source->Has(Mod::kNoinc) && !Arrive(w, s, lane, place, 1, 0)) return Outcome::kFault;
  }
  return Outcome::kNext;
}

}  // namespace

Handler SelectAsync(const Instruction& i) {
  switch (i.op) {
    case Op::kMbarrier:
      return MbarrierObject;
    case Op::kMbarrierArrive:
      return MbarrierArrive;
    case Op::kMbarrierWait:
      return MbarrierWait;
    case Op::kCpAsync:
      return CpAsync;
    case Op::kCpAsyncMbarrier:
      return CpAsyncMbarrier;
    case Op::kCpAsyncGroup:
    case Op::kCpAsyncBulkGroup:
      return Group;
    default:
      return SelectBulk(i);
  }
}

}  // namespace jax_ptx::emulator
