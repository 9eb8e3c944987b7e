// setp, set, selp, slct, testp and logic on predicates (PTX ISA 9.7.6 to 9.7.8).
#include "emulator/handlers.h"
#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

template <class T>
bool IsNan(T x) {
  return x != x;
}

// Comparison by name. The unordered forms are true when an operand is NaN.
template <Mod compare, class T>
bool Compare(T a, T b) {
  switch (compare) {
    case Mod::kEq:
      return a == b;
    case Mod::kNe:
      return !IsNan(a) && !IsNan(b) && a != b;
    case Mod::kLt:
      return a < b;
    case Mod::kLe:
      return a <= b;
    case Mod::kGt:
      return a > b;
    case Mod::kGe:
      return a >= b;
    case Mod::kEqu:
      return IsNan(a) || IsNan(b) || a == b;
    case Mod::kNeu:
      return a != b;
    case Mod::kLtu:
      return !(a >= b);
    case Mod::kLeu:
      return !(a > b);
    case Mod::kGtu:
      return !(a <= b);
    case Mod::kGeu:
      return !(a < b);
    case Mod::kNum:
      return !IsNan(a) && !IsNan(b);
    default:
      return IsNan(a) || IsNan(b);
  }
}

float Wide(F16 x) { return ToFloat(x); }
float Wide(BF16 x) { return ToFloat(x); }
template <class T>
T Wide(T x) {
  return x;
}

// The mask of lanes for which the comparison holds. `s.value` is the place of the first source
// operand.
template <Mod compare, class T>
uint32_t CompareLanes(const Warp& w, const Step& s, uint32_t mask) {
  const auto* a = w.In<Slot<T>>(s.args[s.value]);
  const auto* b = w.In<Slot<T>>(s.args[s.value + 1]);
  bool ftz = s.source->Has(Mod::kFtz);
  return CollectLanes(mask, [=](int l) {
    T x = Get<T>(a, l), y = Get<T>(b, l);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, F16>) {
      if (ftz) x = Flush(x), y = Flush(y);
    }
    return Compare<compare>(Wide(x), Wide(y));
  });
}

// .and, .or, .xor with the last operand.
uint32_t Combine(const Instruction& i, uint32_t value, uint32_t with) {
  if (i.Has(Mod::kAnd)) return value & with;
  if (i.Has(Mod::kOr)) return value | with;
  if (i.Has(Mod::kXor)) return value ^ with;
  return value;
}

template <Mod compare, class T>
Outcome Setp(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  uint32_t holds = CompareLanes<compare, T>(w, s, mask), fails = ~holds;
  // args: p, q (maybe a sink), a, b and, when the results are combined, c.
  if (i.Has(Mod::kAnd) || i.Has(Mod::kOr) || i.Has(Mod::kXor)) {
    uint32_t with = w.Predicate(s.args[4]);
    holds = Combine(i, holds, with);
    fails = Combine(i, fails, with);
  }
  w.SetPredicate(s.args[0], mask, holds);
  w.SetPredicate(s.args[1], mask, fails);
  return Outcome::kNext;
}

template <Mod compare, class T>
Outcome Set(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  uint32_t holds = CompareLanes<compare, T>(w, s, mask);
  if (i.operand_count == 4) holds = Combine(i, holds, w.Predicate(s.args[3]));
  uint32_t yes = i.type[0] == Type::kF32    ? 0x3F800000
                 : i.type[0] == Type::kF16  ? 0x3C00
                 : i.type[0] == Type::kBF16 ? 0x3F80
                                            : 0xFFFFFFFF;
  auto* d = w.Out<uint32_t>(s.args[0]);
  ForLanes(mask, [=](int l) { d[l] = holds >> l & 1 ? yes : 0; });
  return Outcome::kNext;
}

// Packed halves: p compares the low halves and q the high ones.
template <Mod compare, class T>
Outcome SetpPacked(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  const auto* a = w.In<uint32_t>(s.args[s.value]);
  const auto* b = w.In<uint32_t>(s.args[s.value + 1]);
  uint32_t with =
      i.Has(Mod::kAnd) || i.Has(Mod::kOr) || i.Has(Mod::kXor) ? w.Predicate(s.args[4]) : 0;
  bool ftz = i.Has(Mod::kFtz);
  for (int half = 0; half < 2; ++half) {
    uint32_t holds = CollectLanes(mask, [=](int l) {
      T x{static_cast<uint16_t>(a[l] >> (16 * half))},
          y{static_cast<uint16_t>(b[l] >> (16 * half))};
      if (ftz) x = Flush(x), y = Flush(y);
      return Compare<compare>(Wide(x), Wide(y));
    });
    w.SetPredicate(s.args[half], mask, Combine(i, holds, with));
  }
  return Outcome::kNext;
}

// Each half on its own: 1.0, or with an integer result all ones.
template <Mod compare, class T>
Outcome SetPacked(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  const auto* a = w.In<uint32_t>(s.args[s.value]);
  const auto* b = w.In<uint32_t>(s.args[s.value + 1]);
  uint32_t with = i.operand_count == 4 ? w.Predicate(s.args[3]) : 0;
  bool ftz = i.Has(Mod::kFtz);
  uint32_t yes = i.type[0] == Type::kF16x2 ? 0x3C00 : i.type[0] == Type::kBF16x2 ? 0x3F80 : 0xFFFF;
  auto* d = w.Out<uint32_t>(s.args[0]);
  ForLanes(mask, [=](int l) {
    uint32_t result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
      T x{static_cast<uint16_t>(a[l] >> shift)}, y{static_cast<uint16_t>(b[l] >> shift)};
      if (ftz) x = Flush(x), y = Flush(y);
      bool holds = Combine(i, Compare<compare>(Wide(x), Wide(y)), with >> l & 1) & 1;
      if (holds) result |= yes << shift;
    }
    d[l] = result;
  });
  return Outcome::kNext;
}

template <Mod compare, class T>
Handler SelectOne(const Instruction& i) {
  return i.op == Op::kSetp ? Setp<compare, T> : Set<compare, T>;
}

template <Mod compare>
Handler SelectType(const Instruction& i) {
  switch (i.type[i.op == Op::kSetp ? 0 : 1]) {
    case Type::kB16:
    case Type::kU16:
      return SelectOne<compare, uint16_t>(i);
    case Type::kB32:
    case Type::kU32:
      return SelectOne<compare, uint32_t>(i);
    case Type::kB64:
    case Type::kU64:
      return SelectOne<compare, uint64_t>(i);
    case Type::kS16:
      return SelectOne<compare, int16_t>(i);
    case Type::kS32:
      return SelectOne<compare, int32_t>(i);
    case Type::kS64:
      return SelectOne<compare, int64_t>(i);
    case Type::kF16:
      return SelectOne<compare, F16>(i);
    case Type::kBF16:
      return SelectOne<compare, BF16>(i);
    case Type::kF32:
      return SelectOne<compare, float>(i);
    case Type::kF64:
      return SelectOne<compare, double>(i);
    case Type::kF16x2:
      return i.op == Op::kSetp ? SetpPacked<compare, F16> : SetPacked<compare, F16>;
    case Type::kBF16x2:
      return i.op == Op::kSetp ? SetpPacked<compare, BF16> : SetPacked<compare, BF16>;
    default:
      return nullptr;
  }
}

Handler SelectComparison(const Instruction& i) {
  // lo, ls, hi, hs are lt, le, gt, ge of unsigned operands.
  switch (i.Pick(Mod::kCount, Mod::kEq, Mod::kNe, Mod::kLt, Mod::kLe, Mod::kGt, Mod::kGe, Mod::kLo,
                 Mod::kLs, Mod::kHi, Mod::kHs, Mod::kEqu, Mod::kNeu, Mod::kLtu, Mod::kLeu,
                 Mod::kGtu, Mod::kGeu, Mod::kNum, Mod::kNan)) {
    case Mod::kEq:
      return SelectType<Mod::kEq>(i);
    case Mod::kNe:
      return SelectType<Mod::kNe>(i);
    case Mod::kLt:
    case Mod::kLo:
      return SelectType<Mod::kLt>(i);
    case Mod::kLe:
    case Mod::kLs:
      return SelectType<Mod::kLe>(i);
    case Mod::kGt:
    case Mod::kHi:
      return SelectType<Mod::kGt>(i);
    case Mod::kGe:
    case Mod::kHs:
      return SelectType<Mod::kGe>(i);
    case Mod::kEqu:
      return SelectType<Mod::kEqu>(i);
    case Mod::kNeu:
      return SelectType<Mod::kNeu>(i);
    case Mod::kLtu:
      return SelectType<Mod::kLtu>(i);
    case Mod::kLeu:
      return SelectType<Mod::kLeu>(i);
    case Mod::kGtu:
      return SelectType<Mod::kGtu>(i);
    case Mod::kGeu:
      return SelectType<Mod::kGeu>(i);
    case Mod::kNum:
      return SelectType<Mod::kNum>(i);
    case Mod::kNan:
      return SelectType<Mod::kNan>(i);
    default:
      return nullptr;
  }
}

template <class S>
Outcome Selp(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<S>(s.args[0]);
  const auto* a = w.In<S>(s.args[1]);
  const auto* b = w.In<S>(s.args[2]);
  uint32_t p = w.Predicate(s.args[3]);
  ForLanes(mask, [=](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
  return Outcome::kNext;
}

template <class S>
Outcome Slct(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<S>(s.args[0]);
  const auto* a = w.In<S>(s.args[1]);
  const auto* b = w.In<S>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[3]);
  bool is_float = s.source->type[1] == Type::kF32;
  // A negative subnormal counts as −0 with .ftz.
  float least = s.source->Has(Mod::kFtz) ? -0x1.FFFFFCp-127f : 0.0f;
  ForLanes(mask, [=](int l) {
    // For floats −0 counts as 0, and NaN picks b.
    bool first = is_float ? BitCast<float>(c[l]) >= least : BitCast<int32_t>(c[l]) >= 0;
    d[l] = first ? a[l] : b[l];
  });
  return Outcome::kNext;
}

template <class T>
Outcome Testp(Warp& w, const Step& s, uint32_t mask) {
  const auto* a = w.In<Slot<T>>(s.args[1]);
  Mod test = s.source->Pick(Mod::kNormal, Mod::kFinite, Mod::kInfinite, Mod::kNumber,
                            Mod::kNotanumber, Mod::kSubnormal);
  uint32_t holds = CollectLanes(mask, [=](int l) {
    T x = Get<T>(a, l);
    switch (test) {
      case Mod::kFinite:
        return std::isfinite(x);
      case Mod::kInfinite:
        return std::isinf(x);
      case Mod::kNumber:
        return x == x;
      case Mod::kNotanumber:
        return x != x;
      case Mod::kSubnormal:
        return std::fpclassify(x) == FP_SUBNORMAL;
      default:
        return std::isnormal(x) || x == 0;  // the ISA counts zero as normal
    }
  });
  w.SetPredicate(s.args[0], mask, holds);
  return Outcome::kNext;
}

Outcome Logic(Warp& w, const Step& s, uint32_t mask) {
  // mov.pred may read a special register, whose lanes are words.
  uint32_t a = s.value == 0                      ? w.Predicate(s.args[1])
               : *w.In<uint32_t>(s.args[1]) != 0 ? kAllLanes
                                                 : 0;
  uint32_t value = a;
  switch (s.source->op) {
    case Op::kAnd:
      value = a & w.Predicate(s.args[2]);
      break;
    case Op::kOr:
      value = a | w.Predicate(s.args[2]);
      break;
    case Op::kXor:
      value = a ^ w.Predicate(s.args[2]);
      break;
    case Op::kNot:
      value = ~a;
      break;
    default:  // mov
      break;
  }
  w.SetPredicate(s.args[0], mask, value);
  return Outcome::kNext;
}

}  // namespace

Handler SelectCompare(const Instruction& i) {
  bool is_wide = ptx::Bits(i.type[0]) == 64;
  if (i.type[0] == Type::kPred) {
    switch (i.op) {
      case Op::kAnd:
      case Op::kOr:
      case Op::kXor:
      case Op::kNot:
      case Op::kMov:
        return Logic;
      default:
        return nullptr;
    }
  }
  switch (i.op) {
    case Op::kSetp:
    case Op::kSet:
      return SelectComparison(i);
    case Op::kSelp:
      return is_wide ? Selp<uint64_t> : Selp<uint32_t>;
    case Op::kSlct:
      return is_wide ? Slct<uint64_t> : Slct<uint32_t>;
    case Op::kTestp:
      return is_wide ? Testp<double> : Testp<float>;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
