// cp.async.bulk, cp.reduce.async.bulk, st.async, red.async and st.bulk (PTX
// ISA 9.7.9.25, 9.7.13.7). As in async.cc, what is issued is done.
#include "emulator/async.h"
#include "emulator/atomic.h"
#include "emulator/cluster.h"
#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/memory.h"
#include "emulator/order.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Space;

constexpr uint32_t kPiece = 16;  // every size is a multiple of it

// Without a cluster of its own a CTA must not send to itself in this way: on an H200 (not in the
// ISA) the instruction is an illegal one.
bool HasCluster(Warp& w, const Step& s, uint32_t mask) {
  const Launch& launch = *w.cta->cluster->launch;
  if (IsExplicitCluster(launch)) return true;
  Report(w, s, __builtin_ctz(mask),
         "a GPU takes this for an illegal instruction in a launch without a cluster: give the "
         "launch one of two CTAs or more, or the entry .reqnctapercluster 1, 1, 1");
  return false;
}

// Copies, or combines element by element, `bytes` bytes; of each piece the bytes in `byte_mask`.
bool Transfer(Warp& w, const Step& s, int lane, Space to_space, uint64_t to, Space from_space,
              uint64_t from, uint32_t bytes, uint32_t byte_mask) {
  const Instruction& i = *s.source;
  Update update = i.op == Op::kCpReduceBulk ? SelectUpdate(i, to_space == Space::kShared) : nullptr;
  uint32_t element = update != nullptr ? ptx::Bytes(i.type[0]) : 1;
  for (uint32_t done = 0; done < bytes; done += kPiece) {
    uint8_t* target = LocateLane(w, s, lane, to_space, to + done, kPiece, Access::kCopyWrite);
    if (target == nullptr) return false;
    uint8_t* source = LocateLane(w, s, lane, from_space, from + done, kPiece, Access::kCopyRead);
    if (source == nullptr) return false;
    if (update == nullptr && byte_mask == 0xFFFF) {
      std::memmove(target, source, kPiece);
      continue;
    }
    for (uint32_t at = 0; at < kPiece; at += element) {
      uint64_t value = 0;
      std::memcpy(&value, source + at, element);
      if (update != nullptr) {
        update(target + at, value, value);
      } else if (byte_mask >> at & 1) {
        target[at] = static_cast<uint8_t>(value);
      }
    }
  }
  return true;
}

// cp{.reduce}.async.bulk [to], [from], size, [mbarrier]{, mask}; or with .bulk_group and no
// mbarrier.
Outcome Bulk(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool to_global = i.Has(Mod::kBulkGroup), is_multicast = i.Has(Mod::kMulticast);
  bool from_shared = to_global || !i.Has(Mod::kGlobal);
  const uint32_t* to = s.args;
  const uint32_t* from = s.args + kAddressArgs;
  uint32_t size_arg = s.args[2 * kAddressArgs];
  bool is_sent = from_shared && !to_global && i.op == Op::kCpAsyncBulk;
  if (is_sent && !HasCluster(w, s, mask)) return Outcome::kFault;
  const uint32_t* rest = s.args + 2 * kAddressArgs + 1;  // an mbarrier, or a policy and a mask
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    uint32_t bytes = w.In<uint32_t>(size_arg)[lane];
    uint64_t target = AsyncAddress(w, to, lane), source = AsyncAddress(w, from, lane);
    if (bytes % kPiece != 0 || bytes == 0 || bytes > kMaxSharedBytes) {
      Report(w, s, lane, "a bulk copy has a multiple of 16 bytes, not " + std::to_string(bytes));
      return Outcome::kFault;
    }
    Space to_space = to_global ? Space::kGlobal : Space::kShared;
    Space from_space = from_shared ? Space::kShared : Space::kGlobal;
    Order* order = w.cta->cluster->order;
    if (to_global) {
      if (order != nullptr) order->BeginCopy(Order::Copier::kBulk, order->SlotOf(w, lane));
      uint32_t byte_mask = 0xFFFF;
      if (i.Has(Mod::kCpMask))
        byte_mask = w.In<uint32_t>(rest[i.Has(Mod::kCacheHintL2) ? 1 : 0])[lane] & 0xFFFF;
      if (!Transfer(w, s, lane, to_space, target, from_space, source, bytes, byte_mask))
        return Outcome::kFault;
      continue;
    }
    uint64_t barrier = AsyncAddress(w, rest, lane);
    uint32_t receivers = 1, ranks = static_cast<uint32_t>(w.cta->cluster->ctas.size());
    if (is_multicast) receivers = w.In<uint32_t>(rest[kAddressArgs])[lane] & 0xFFFF;
    for (uint32_t rank = 0; rank < 16; ++rank) {
      if ((receivers >> rank & 1) == 0) continue;
      uint64_t there = target, its_barrier = barrier;
      if (is_multicast) {
        // The same offsets in every CTA of the mask.
        uint64_t keep = (uint64_t{1} << kSharedRankShift) - 1,
                 window = uint64_t{rank + 1} << kSharedRankShift;
        if (rank >= ranks) window = uint64_t{255} << kSharedRankShift;
        there = (target & keep) | window;
        its_barrier = (barrier & keep) | window;
      }
      uint8_t* place = FindMbarrier(w, s, lane, its_barrier, true);
      if (place == nullptr) return Outcome::kFault;
      if (!Transfer(w, s, lane, to_space, there, from_space, source, bytes, 0xFFFF))
        return Outcome::kFault;
      if (order != nullptr) order->Land(place);
      if (!AddBytes(w, s, lane, place, -int64_t{bytes})) return Outcome::kFault;
    }
  }
  return Outcome::kNext;
}

// st.async [to], values, [mbarrier] and red.async [to], value, [mbarrier]: to another CTA's shared
// memory, which hears of the bytes.
template <class T>
Outcome Remote(Warp& w, const Step& s, uint32_t mask) {
  if (!HasCluster(w, s, mask)) return Outcome::kFault;
  uint32_t count = s.vector, bytes = count * sizeof(T);
  const uint32_t* values = s.args + kAddressArgs;
  Update update = s.source->op == Op::kRedAsync ? SelectUpdate(*s.source, true) : nullptr;
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    uint64_t to = AsyncAddress(w, s.args, lane);
    Space space = to >> kSlotBits == kSharedSlot ? Space::kNone : Space::kShared;
    uint8_t* place = FindMbarrier(w, s, lane, AsyncAddress(w, values + count, lane), true);
    if (place == nullptr) return Outcome::kFault;
    Order* order = w.cta->cluster->order;
    uint8_t* target = LocateLane(w, s, lane, space, to, bytes, Access::kCopyWrite);
    if (target == nullptr) return Outcome::kFault;
    for (uint32_t e = 0; e < count; ++e) {
      T value = w.In<T>(values[e])[lane];
      if (update != nullptr) {
        update(target, value, value);
      } else {
        std::memcpy(target + e * sizeof(T), &value, sizeof(T));
      }
    }
    if (order != nullptr) order->Land(place);
    if (!AddBytes(w, s, lane, place, -int64_t{bytes})) return Outcome::kFault;
  }
  return Outcome::kNext;
}

// st.bulk [to], size, 0.
Outcome Fill(Warp& w, const Step& s, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    uint64_t to = AsyncAddress(w, s.args, lane), bytes = w.In<uint64_t>(s.args[kAddressArgs])[lane];
    Space space = s.space == Space::kShared ? Space::kShared : Space::kNone;
    if (bytes % 8 != 0 || bytes > kMaxSharedBytes) {
      Report(w, s, lane, "st.bulk fills a multiple of 8 bytes, not " + std::to_string(bytes));
      return Outcome::kFault;
    }
    for (uint64_t done = 0; done < bytes; done += 8) {
      uint8_t* target = LocateLane(w, s, lane, space, to + done, 8, Access::kWrite);
      if (target == nullptr) return Outcome::kFault;
      std::memset(target, 0, 8);
    }
  }
  return Outcome::kNext;
}

}  // namespace

Handler SelectBulk(const Instruction& i) {
  switch (i.op) {
    case Op::kCpAsyncBulk:
    case Op::kCpReduceBulk:
      return Bulk;
    case Op::kStAsync:
    case Op::kRedAsync:
      return ptx::Bits(i.type[0]) == 64 ? Remote<uint64_t> : Remote<uint32_t>;
    case Op::kStBulk:
      return Fill;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
