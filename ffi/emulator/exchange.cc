// Exchange between the lanes of a warp: shfl, vote, match, redux, activemask, elect (PTX ISA 9.7.9
// and 9.7.13).
#include "emulator/handlers.h"
#include "emulator/number.h"
#include "emulator/report.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

// args: d, p, a, b, c, member mask.
template <Mod mode>
Outcome Shfl(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 5); outcome != Outcome::kNext) return outcome;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* b = w.In<uint32_t>(s.args[3]);
  const auto* c = w.In<uint32_t>(s.args[4]);
  uint32_t a[kLanes];
  std::memcpy(a, w.In<uint32_t>(s.args[2]), sizeof a);
  // The butterfly of a whole warp, as reductions have it: constants, and every lane has a partner.
  bool is_constant = (s.args[3] & s.args[4]) >> 31 != 0;
  if (mode == Mod::kBfly && mask == kAllLanes && is_constant && (c[0] & 0x1F1F) == 0x1F) {
    uint32_t offset = b[0] & 31;
    if (offset % 4 == 0) {  // four lanes at a time
      for (uint32_t lane = 0; lane < kLanes; lane += 4)
        std::memcpy(d + lane, a + (lane ^ offset), 4 * sizeof *a);
    } else {
      for (uint32_t lane = 0; lane < kLanes; ++lane) d[lane] = a[lane ^ offset];
    }
    w.SetPredicate(s.args[1], mask, kAllLanes);
    return Outcome::kNext;
  }
  uint32_t in_range = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    int segment = static_cast<int>(c[lane] >> 8 & 31), clamp = static_cast<int>(c[lane] & 31);
    int offset = static_cast<int>(b[lane] & 31);
    int last = (lane & segment) | (clamp & ~segment);
    int from = mode == Mod::kUp     ? lane - offset
               : mode == Mod::kDown ? lane + offset
               : mode == Mod::kBfly ? lane ^ offset
                                    : (lane & segment) | (offset & ~segment);
    bool holds = mode == Mod::kUp ? from >= last : from <= last;
    if (!holds) from = lane;
    if ((mask >> from & 1) == 0) {
      Report(w, s, lane,
             "reads the register of lane " + std::to_string(from) +
                 ", which does not take part (active lanes " + Hex(mask) + ")",
             Kind::kInactiveLane);
      return Outcome::kFault;
    }
    d[lane] = a[from];
    in_range |= static_cast<uint32_t>(holds) << lane;
  }
  w.SetPredicate(s.args[1], mask, in_range);
  return Outcome::kNext;
}

// args: d or p, source predicate, member mask.
Outcome Vote(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 2); outcome != Outcome::kNext) return outcome;
  uint32_t ballot = w.Predicate(s.args[1]) & mask;
  const Instruction& i = *s.source;
  if (i.Has(Mod::kBallot)) {
    auto* d = w.Out<uint32_t>(s.args[0]);
    ForLanes(mask, [=](int l) { d[l] = ballot; });
    return Outcome::kNext;
  }
  bool holds = i.Has(Mod::kAny)   ? ballot != 0
               : i.Has(Mod::kAll) ? ballot == mask
                                  : ballot == 0 || ballot == mask;
  w.SetPredicate(s.args[0], mask, holds ? kAllLanes : 0);
  return Outcome::kNext;
}

// args: d, p, a, member mask.
template <class S>
Outcome Match(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 3); outcome != Outcome::kNext) return outcome;
  auto* d = w.Out<uint32_t>(s.args[0]);
  S a[kLanes];
  std::memcpy(a, w.In<S>(s.args[2]), sizeof a);
  auto equal_to = [&](S value) { return CollectLanes(mask, [&](int l) { return a[l] == value; }); };
  if (s.source->Has(Mod::kAny)) {
    ForLanes(mask, [&](int l) { d[l] = equal_to(a[l]); });
    return Outcome::kNext;
  }
  bool all = equal_to(a[__builtin_ctz(mask)]) == mask;
  ForLanes(mask, [=](int l) { d[l] = all ? mask : 0; });
  w.SetPredicate(s.args[1], mask, all ? kAllLanes : 0);
  return Outcome::kNext;
}

// args: d, a, member mask.
template <class T>
Outcome Redux(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 2); outcome != Outcome::kNext) return outcome;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  Mod op = s.source->Pick(Mod::kAdd, Mod::kMin, Mod::kMax, Mod::kAnd, Mod::kOr, Mod::kXor);
  T result = Get<T>(a, __builtin_ctz(mask));
  for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
    T value = Get<T>(a, __builtin_ctz(rest));
    switch (op) {
      case Mod::kMin:
        result = value < result ? value : result;
        break;
      case Mod::kMax:
        result = value > result ? value : result;
        break;
      case Mod::kAnd:
        result &= value;
        break;
      case Mod::kOr:
        result |= value;
        break;
      case Mod::kXor:
        result ^= value;
        break;
      default:
        result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(value));
    }
  }
  ForLanes(mask, [=](int l) { Put<T>(d, l, result); });
  return Outcome::kNext;
}

// redux.sync.{min,max}{.abs}{.NaN}.f32
Outcome ReduxFloat(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 2); outcome != Outcome::kNext) return outcome;
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const Instruction& i = *s.source;
  float result = std::numeric_limits<float>::quiet_NaN();
  bool is_nan = false;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    float value = Get<float>(a, __builtin_ctz(rest));
    if (i.Has(Mod::kAbs)) value = std::fabs(value);
    is_nan |= value != value;
    bool is_better = i.Has(Mod::kMin) ? value < result || (value == result && std::signbit(value))
                                      : value > result || (value == result && !std::signbit(value));
    if (result != result || is_better) result = value;
  }
  if (is_nan && i.Has(Mod::kNanMode)) result = std::numeric_limits<float>::quiet_NaN();
  ForLanes(mask, [=](int l) { Put<float>(d, l, Canonical(result)); });
  return Outcome::kNext;
}

Outcome Activemask(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  ForLanes(mask, [=](int l) { d[l] = mask; });
  return Outcome::kNext;
}

// args: d, p, member mask. The lowest lane is elected.
Outcome Elect(Warp& w, const Step& s, uint32_t mask) {
  if (Outcome outcome = Gather(w, s, mask, 2); outcome != Outcome::kNext) return outcome;
  auto* d = w.Out<uint32_t>(s.args[0]);
  auto leader = static_cast<uint32_t>(__builtin_ctz(mask));
  ForLanes(mask, [=](int l) { d[l] = leader; });
  w.SetPredicate(s.args[1], mask, 1u << leader);
  return Outcome::kNext;
}

}  // namespace

Handler SelectExchange(const Instruction& i) {
  switch (i.op) {
    case Op::kShfl:
      if (i.Has(Mod::kUp)) return Shfl<Mod::kUp>;
      if (i.Has(Mod::kDown)) return Shfl<Mod::kDown>;
      return i.Has(Mod::kBfly) ? Shfl<Mod::kBfly> : Shfl<Mod::kIdx>;
    case Op::kVote:
      return Vote;
    case Op::kMatch:
      return i.type[0] == Type::kB64 ? Match<uint64_t> : Match<uint32_t>;
    case Op::kRedux:
      if (i.type[0] == Type::kF32) return ReduxFloat;
      return i.type[0] == Type::kS32 ? Redux<int32_t> : Redux<uint32_t>;
    case Op::kActivemask:
      return Activemask;
    case Op::kElect:
      return Elect;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
