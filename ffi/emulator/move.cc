// mov with packing and unpacking, cvta, and the steps that compile.cc adds beside an instruction.
#include <chrono>

#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Special;

// mov.b32 d, {a, b}: the first element is the lowest. Elements are 8, 16 or 32 bits wide.
template <class S>
Outcome PackElements(Warp& w, const Step& s, uint32_t mask) {
  int count = s.source->operand_count - 1;
  int bits = static_cast<int>(8 * sizeof(S)) / count;
  uint64_t keep = (uint64_t{1} << bits) - 1;
  auto* d = w.Out<S>(s.args[0]);
  ForLanes(mask, [&](int l) {
    uint64_t value = 0;
    for (int e = 0; e < count; ++e)
      value |= (w.In<uint32_t>(s.args[1 + e])[l] & keep) << (bits * e);
    d[l] = static_cast<S>(value);
  });
  return Outcome::kNext;
}

template <class S>
Outcome UnpackElements(Warp& w, const Step& s, uint32_t mask) {
  int count = s.source->operand_count - 1;
  int bits = static_cast<int>(8 * sizeof(S)) / count;
  uint64_t keep = (uint64_t{1} << bits) - 1;
  S source[kLanes];  // a destination may be the source
  std::memcpy(source, w.In<S>(s.args[count]), sizeof source);
  for (int e = 0; e < count; ++e) {
    auto* d = w.Out<uint32_t>(s.args[e]);
    ForLanes(mask, [&](int l) { d[l] = static_cast<uint32_t>(source[l] >> (bits * e) & keep); });
  }
  return Outcome::kNext;
}

// Generic addresses of .shared and .local are the window's base plus the address; the others are
// the same.
Outcome ToGeneric(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint64_t>(s.args[0]);
  const auto* a = w.In<uint64_t>(s.args[1]);
  uint64_t base = s.value;
  ForLanes(mask, [=](int l) { d[l] = base | a[l]; });
  return Outcome::kNext;
}
Outcome FromGeneric(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint64_t>(s.args[0]);
  const auto* a = w.In<uint64_t>(s.args[1]);
  uint64_t base = s.value;
  ForLanes(mask,
           [=](int l) { d[l] = a[l] >> kSlotBits == base >> kSlotBits ? a[l] ^ base : a[l]; });
  return Outcome::kNext;
}

// A cache policy means nothing here.
Outcome NoPolicy(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint64_t>(s.args[0]);
  ForLanes(mask, [=](int l) { d[l] = 0; });
  return Outcome::kNext;
}

Outcome Isspacep(Warp& w, const Step& s, uint32_t mask) {
  const auto* a = w.In<uint64_t>(s.args[1]);
  const Instruction& i = *s.source;
  bool is_own = i.Has(Mod::kShared) || i.Has(Mod::kSharedCta);
  uint32_t own = w.cta->rank + 1;
  const Launch& launch = *w.cta->cluster->launch;
  uint64_t parameters = launch.program->parameters >> kSlotBits;
  uint32_t holds = CollectLanes(mask, [&](int l) {
    uint64_t slot = a[l] >> kSlotBits;
    if (i.Has(Mod::kLocal)) return slot == kLocalSlot;
    if (i.Has(Mod::kParam)) return slot == parameters;
    if (i.Has(Mod::kSharedCluster)) return slot == kSharedSlot;
    uint32_t rank = static_cast<uint32_t>(a[l]) >> kSharedRankShift;
    if (is_own) return slot == kSharedSlot && (rank == 0 || rank == own);
    bool is_variable = slot - kFirstVariableSlot < launch.variables.size();
    bool is_constant = slot != parameters && is_variable &&
                       !launch.variables[slot - kFirstVariableSlot].is_writable;
    if (i.Has(Mod::kConst)) return is_constant;
    return slot != kSharedSlot && slot != kLocalSlot && slot != parameters && !is_constant;
  });
  w.SetPredicate(s.args[0], mask, holds);
  return Outcome::kNext;
}

// mapa: the address of the same shared variable in another CTA of the cluster.
template <class S>
Outcome Mapa(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<S>(s.args[0]);
  const auto* a = w.In<S>(s.args[1]);
  const auto* rank = w.In<uint32_t>(s.args[2]);
  constexpr S kOffset = (S{1} << kSharedRankShift) - 1;
  bool is_generic = sizeof(S) == 8 && !s.source->Has(Mod::kSharedCluster);
  S window = 0;
  if constexpr (sizeof(S) == 8) window = is_generic ? kSharedSlot << kSlotBits : 0;
  ForLanes(mask, [=](int l) {
    // A rank that no cluster has stays one, so that the access is an error.
    S number = rank[l] < 254 ? rank[l] + 1 : 255;
    d[l] = window | number << kSharedRankShift | (a[l] & kOffset);
  });
  return Outcome::kNext;
}
template <class S>
Outcome Getctarank(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<S>(s.args[1]);
  uint32_t own = w.cta->rank;
  ForLanes(mask, [=](int l) {
    uint32_t rank = static_cast<uint32_t>(a[l]) >> kSharedRankShift;
    d[l] = rank == 0 ? own : rank - 1;
  });
  return Outcome::kNext;
}

template <class S>
Outcome Move(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<S>(s.args[0]);
  const auto* a = w.In<S>(s.args[1]);
  ForLanes(mask, [=](int l) { d[l] = a[l]; });
  return Outcome::kNext;
}

}  // namespace

Outcome Move32(Warp& w, const Step& s, uint32_t mask) { return Move<uint32_t>(w, s, mask); }
Outcome Move64(Warp& w, const Step& s, uint32_t mask) { return Move<uint64_t>(w, s, mask); }

Outcome Narrow(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint64_t>(s.args[1]);
  ForLanes(mask, [=](int l) { d[l] = static_cast<uint32_t>(a[l]); });
  return Outcome::kNext;
}

Outcome Widen(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint64_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  ForLanes(mask, [=](int l) { d[l] = a[l]; });
  return Outcome::kNext;
}

Outcome WidenSigned(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint64_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  ForLanes(mask, [=](int l) { d[l] = static_cast<uint64_t>(int64_t{static_cast<int32_t>(a[l])}); });
  return Outcome::kNext;
}

Outcome ReadClock(Warp& w, const Step& s, uint32_t mask) {
  auto special = static_cast<Special>(s.value);
  bool is_timer = special == Special::kGlobaltimer || special == Special::kGlobaltimerLo ||
                  special == Special::kGlobaltimerHi;
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  // %clock counts steps, so that a kernel which waits for it does not depend on the host.
  uint64_t value = is_timer ? static_cast<uint64_t>(std::chrono::nanoseconds(now).count())
                            : ~(w.cta->cluster->steps_left + w.slice);
  if (special == Special::kClockHi || special == Special::kGlobaltimerHi) value >>= 32;
  if (ptx::Bits(special) == 64) {
    auto* d = w.Out<uint64_t>(s.args[0]);
    ForLanes(mask, [=](int l) { d[l] = value; });
  } else {
    auto* d = w.Out<uint32_t>(s.args[0]);
    ForLanes(mask, [=](int l) { d[l] = static_cast<uint32_t>(value); });
  }
  return Outcome::kNext;
}

Handler SelectMove(const Instruction& i) {
  bool is_wide = ptx::Bits(i.type[0]) == 64;
  switch (i.op) {
    case Op::kMov: {
      if (i.type[0] == ptx::Type::kPred || ptx::Bits(i.type[0]) == 128) return nullptr;
      bool packs = i.operand_count > 2 && i.destination_count == 1;
      if (packs) return is_wide ? PackElements<uint64_t> : PackElements<uint32_t>;
      if (i.operand_count > 2) return is_wide ? UnpackElements<uint64_t> : UnpackElements<uint32_t>;
      return is_wide ? Move64 : Move32;
    }
    case Op::kCvta:
      if (!is_wide) return Move32;
      if (i.Has(Mod::kGlobal) || i.Has(Mod::kConst)) return Move64;
      return i.Has(Mod::kTo) ? FromGeneric : ToGeneric;
    case Op::kCreatepolicy:
      return NoPolicy;
    case Op::kIsspacep:
      return Isspacep;
    case Op::kMapa:
      return is_wide ? Mapa<uint64_t> : Mapa<uint32_t>;
    case Op::kGetctarank:
      return is_wide ? Getctarank<uint64_t> : Getctarank<uint32_t>;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
