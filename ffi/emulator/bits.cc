// Bit fields, counting, permutation and byte products (PTX ISA 9.7.1, 9.7.8 and 9.7.9.7).
#include "emulator/handlers.h"
#include "emulator/lanes.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

template <class T>
using Unsigned = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <class T>
constexpr int kBits = 8 * sizeof(T);

struct Popc {
  static uint32_t Apply(uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); }
  static uint32_t Apply(uint64_t a) { return static_cast<uint32_t>(__builtin_popcountll(a)); }
};
struct Clz {
  static uint32_t Apply(uint32_t a) {
    return a == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(a));
  }
  static uint32_t Apply(uint64_t a) {
    return a == 0 ? 64 : static_cast<uint32_t>(__builtin_clzll(a));
  }
};
template <class T, bool shift>
struct Bfind {
  static uint32_t Apply(T a) {
    using U = Unsigned<T>;
    U bits = static_cast<U>(std::is_signed_v<T> && a < 0 ? ~a : a);
    if (bits == 0) return 0xFFFFFFFF;
    uint32_t left = Clz::Apply(bits);
    return shift ? left : static_cast<uint32_t>(kBits<T>) - 1 - left;
  }
};
template <class T>
struct BfindMaker {
  static Handler Make() { return Unary<uint32_t, T, Bfind<T, false>>; }
};
template <class T>
struct BfindShiftMaker {
  static Handler Make() { return Unary<uint32_t, T, Bfind<T, true>>; }
};
struct Brev {
  static uint32_t Apply(uint32_t a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(a);
  }
  static uint64_t Apply(uint64_t a) {
    return uint64_t{Apply(static_cast<uint32_t>(a))} << 32 | Apply(static_cast<uint32_t>(a >> 32));
  }
};
template <class T>
struct Bfe {  // ISA 9.7.1.21: position and length are bytes; the sign comes from the last bit that
              // exists
  static T Apply(T a, uint32_t b, uint32_t c) {
    constexpr uint32_t kTop = kBits<T> - 1;
    uint32_t position = b & 0xFF, length = c & 0xFF;
    using U = Unsigned<T>;
    U bits = static_cast<U>(a);
    uint32_t last = position + length == 0 ? 0 : position + length - 1;
    bool is_negative =
        std::is_signed_v<T> && length != 0 && ((bits >> (last > kTop ? kTop : last)) & 1);
    U field = position > kTop ? 0 : bits >> position;
    if (length <= kTop) {
      U mask = (U{1} << length) - 1;
      uint32_t available = position > kTop ? 0 : kTop + 1 - position;
      U kept = length < available ? mask : available > kTop ? ~U{0} : (U{1} << available) - 1;
      field &= kept;
      if (is_negative) field |= ~kept;
    } else if (is_negative) {
      uint32_t available = position > kTop ? 0 : kTop + 1 - position;
      if (available <= kTop) field |= ~((U{1} << available) - 1);
    }
    return static_cast<T>(field);
  }
  static Handler Make() { return Ternary<T, T, uint32_t, uint32_t, Bfe<T>>; }
};
template <class T>
Outcome Bfi(Warp& w, const Step& s, uint32_t mask) {
  auto* f = w.Out<Slot<T>>(s.args[0]);
  const auto* a = w.In<Slot<T>>(s.args[1]);
  const auto* b = w.In<Slot<T>>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[3]);
  const auto* d = w.In<uint32_t>(s.args[4]);
  ForLanes(mask, [=](int l) {
    uint32_t position = c[l] & 0xFF, length = d[l] & 0xFF;
    T field = length >= kBits<T> ? ~T{0} : (T{1} << length) - 1;
    field = position >= kBits<T> ? T{0} : field << position;
    T value = position >= kBits<T> ? T{0} : a[l] << position;
    f[l] = (b[l] & ~field) | (value & field);
  });
  return Outcome::kNext;
}

template <bool left, bool wrap>
struct Shf {
  static uint32_t Apply(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t n = wrap ? c & 31 : c > 32 ? 32 : c;
    uint64_t both = uint64_t{b} << 32 | a;
    return static_cast<uint32_t>(left ? (both << n) >> 32 : both >> n);
  }
};
template <bool left, bool wrap>
constexpr Handler kShf = Ternary<uint32_t, uint32_t, uint32_t, uint32_t, Shf<left, wrap>>;

void Lop3Lanes(Warp& w, const Step& s, uint32_t mask, const uint32_t* sources) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(sources[0]);
  const auto* b = w.In<uint32_t>(sources[1]);
  const auto* c = w.In<uint32_t>(sources[2]);
  uint32_t minterm[8];  // all ones where the table has a 1: row (a, b, c), a the highest bit
  for (int row = 0; row < 8; ++row) minterm[row] = 0 - static_cast<uint32_t>(s.value >> row & 1);
  ForLanes(mask, [=](int l) {
    uint32_t x = a[l], y = b[l], z = c[l];
    d[l] = (minterm[0] & ~x & ~y & ~z) | (minterm[1] & ~x & ~y & z) | (minterm[2] & ~x & y & ~z) |
           (minterm[3] & ~x & y & z) | (minterm[4] & x & ~y & ~z) | (minterm[5] & x & ~y & z) |
           (minterm[6] & x & y & ~z) | (minterm[7] & x & y & z);
  });
}
Outcome Lop3(Warp& w, const Step& s, uint32_t mask) {
  Lop3Lanes(w, s, mask, s.args + 1);
  return Outcome::kNext;
}
// lop3.or d|p, a, b, c, table, q: p is whether d is not zero, combined with q.
Outcome Lop3Predicate(Warp& w, const Step& s, uint32_t mask) {
  uint32_t with = w.Predicate(s.args[6]);
  Lop3Lanes(w, s, mask, s.args + 2);
  const auto* d = w.In<uint32_t>(s.args[0]);
  uint32_t holds = CollectLanes(mask, [=](int l) { return d[l] != 0; });
  w.SetPredicate(s.args[1], mask, s.source->Has(Mod::kAnd) ? holds & with : holds | with);
  return Outcome::kNext;
}

// prmt: `selectors` holds, for each mode and low bits of c, the four byte selectors (ISA 9.7.9.7).
uint32_t Selectors(Mod mode, uint32_t c) {
  static constexpr uint16_t kF4e[] = {0x3210, 0x4321, 0x5432, 0x6543};
  static constexpr uint16_t kB4e[] = {0x5670, 0x6701, 0x7012, 0x0123};
  static constexpr uint16_t kRc8[] = {0x0000, 0x1111, 0x2222, 0x3333};
  static constexpr uint16_t kEcl[] = {0x3210, 0x3211, 0x3222, 0x3333};
  static constexpr uint16_t kEcr[] = {0x0000, 0x1110, 0x2210, 0x3210};
  static constexpr uint16_t kRc16[] = {0x1010, 0x3232, 0x1010, 0x3232};
  switch (mode) {
    case Mod::kF4e:
      return kF4e[c & 3];
    case Mod::kB4e:
      return kB4e[c & 3];
    case Mod::kRc8:
      return kRc8[c & 3];
    case Mod::kEcl:
      return kEcl[c & 3];
    case Mod::kEcr:
      return kEcr[c & 3];
    case Mod::kRc16:
      return kRc16[c & 3];
    default:
      return c;
  }
}
Outcome Prmt(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[3]);
  ForLanes(mask, [&](int l) {
    uint64_t bytes = uint64_t{b[l]} << 32 | a[l];
    uint32_t selectors = Selectors(static_cast<Mod>(s.value), c[l]);
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      uint32_t selector = selectors >> (4 * i) & 0xF;
      uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (selector & 7))) & 0xFF;
      if (selector & 8) byte = byte & 0x80 ? 0xFF : 0;
      result |= byte << (8 * i);
    }
    d[l] = result;
  });
  return Outcome::kNext;
}

// bmsk: `b` ones from bit `a` on. Wrapping takes both modulo 32, clamping lets nothing pass bit 31.
template <bool wrap>
struct Bmsk {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    if (wrap) a &= 31, b &= 31;
    if (a > 31) return 0;
    uint32_t ones = b > 31 ? ~0u : (1u << b) - 1;
    return ones << a;
  }
};

// szext: the low `b` bits of a, extended; none of them gives 0.
template <class T, bool wrap>
struct Szext {
  static T Apply(T a, uint32_t b) {
    if (wrap) b &= 31;
    if (b == 0) return 0;
    if (b > 31) return a;
    uint32_t field = static_cast<uint32_t>(a) & ((1u << b) - 1);
    bool is_negative = std::is_signed_v<T> && (field >> (b - 1) & 1);
    return static_cast<T>(is_negative ? field | ~((1u << b) - 1) : field);
  }
};

// fns: the position of the |c|-th set bit of a, from bit b upwards or downwards; all ones if there
// is none.
struct Fns {
  static uint32_t Apply(uint32_t a, uint32_t b, uint32_t c) {
    auto offset = static_cast<int32_t>(c);
    if (offset == 0) return b < 32 && (a >> b & 1) ? b : ~0u;
    uint32_t left = offset > 0 ? c : 0 - c;
    for (int64_t p = b; p >= 0 && p < 32; p += offset > 0 ? 1 : -1) {
      if ((a >> p & 1) && --left == 0) return static_cast<uint32_t>(p);
    }
    return ~0u;
  }
};

template <class A, class B>
struct Dp4a {
  static uint32_t Apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) {
      c += static_cast<uint32_t>(int32_t{static_cast<A>(a >> i)} * int32_t{static_cast<B>(b >> i)});
    }
    return c;
  }
};
template <class A, class B>
constexpr Handler kDp4a = Ternary<uint32_t, uint32_t, uint32_t, uint32_t, Dp4a<A, B>>;

// dp2a: two 16-bit halves of a times the low or high two bytes of b.
template <class A, class B, int shift>
struct Dp2a {
  static uint32_t Apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 2; ++i) {
      int64_t product =
          int64_t{static_cast<A>(a >> (16 * i))} * static_cast<B>(b >> (shift + 8 * i));
      c += static_cast<uint32_t>(product);
    }
    return c;
  }
};
template <class A, class B>
Handler SelectDp2a(const Instruction& i) {
  using U = uint32_t;
  return i.Has(Mod::kHi) ? Ternary<U, U, U, U, Dp2a<A, B, 16>> : Ternary<U, U, U, U, Dp2a<A, B, 0>>;
}

}  // namespace

Handler SelectBits(const Instruction& i) {
  Type type = i.type[0];
  bool is_wide = ptx::Bits(type) == 64, wraps = i.Has(Mod::kWrap);
  using U32 = uint32_t;
  switch (i.op) {
    case Op::kPopc:
      return is_wide ? Unary<U32, uint64_t, Popc> : Unary<U32, U32, Popc>;
    case Op::kClz:
      return is_wide ? Unary<U32, uint64_t, Clz> : Unary<U32, U32, Clz>;
    case Op::kBfind:
      return i.Has(Mod::kShiftamt) ? WithInteger<BfindShiftMaker>(type)
                                   : WithInteger<BfindMaker>(type);
    case Op::kBrev:
      return is_wide ? Unary<uint64_t, uint64_t, Brev> : Unary<U32, U32, Brev>;
    case Op::kBfe:
      return WithInteger<Bfe>(type);
    case Op::kBfi:
      return is_wide ? Bfi<uint64_t> : Bfi<U32>;
    case Op::kShf:
      if (i.Has(Mod::kL)) return i.Has(Mod::kWrap) ? kShf<true, true> : kShf<true, false>;
      return i.Has(Mod::kWrap) ? kShf<false, true> : kShf<false, false>;
    case Op::kLop3:
      return i.destination_count == 2 ? Lop3Predicate : Lop3;
    case Op::kPrmt:
      return Prmt;
    case Op::kDp4a:
      if (type == Type::kU32) {
        return i.type[1] == Type::kU32 ? kDp4a<uint8_t, uint8_t> : kDp4a<uint8_t, int8_t>;
      }
      return i.type[1] == Type::kU32 ? kDp4a<int8_t, uint8_t> : kDp4a<int8_t, int8_t>;
    case Op::kBmsk:
      return wraps ? Binary<U32, U32, U32, Bmsk<true>> : Binary<U32, U32, U32, Bmsk<false>>;
    case Op::kSzext:
      if (type == Type::kU32) {
        return wraps ? Binary<U32, U32, U32, Szext<U32, true>>
                     : Binary<U32, U32, U32, Szext<U32, false>>;
      }
      return wraps ? Binary<int32_t, int32_t, U32, Szext<int32_t, true>>
                   : Binary<int32_t, int32_t, U32, Szext<int32_t, false>>;
    case Op::kFns:
      return Ternary<U32, U32, U32, U32, Fns>;
    case Op::kDp2a:
      if (type == Type::kU32) {
        return i.type[1] == Type::kU32 ? SelectDp2a<uint16_t, uint8_t>(i)
                                       : SelectDp2a<uint16_t, int8_t>(i);
      }
      return i.type[1] == Type::kU32 ? SelectDp2a<int16_t, uint8_t>(i)
                                     : SelectDp2a<int16_t, int8_t>(i);
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
