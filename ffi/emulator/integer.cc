// Integer arithmetic, logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.2 and 9.7.8).
#include "emulator/handlers.h"
#include "emulator/lanes.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

// Arithmetic is done unsigned and wide enough, so that nothing overflows in C++.
template <class T>
using Unsigned = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <class T>
constexpr int kBits = 8 * sizeof(T);

template <class T>
T HighProduct(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> 64);
  } else {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> kBits<T>);
  }
}

template <class T>
T Sum(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T Product(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
}
template <class T>
T Negative(T a) {
  return static_cast<T>(0 - static_cast<Unsigned<T>>(a));
}
inline int32_t Saturate(int64_t value) {
  return static_cast<int32_t>(value < INT32_MIN   ? INT32_MIN
                              : value > INT32_MAX ? INT32_MAX
                                                  : value);
}

// Functors of two or three operands of one type.
#define BINARY(name, expression)                                    \
  template <class T>                                                \
  struct name {                                                     \
    static T Apply(T a, T b) { return static_cast<T>(expression); } \
    static Handler Make() { return Binary<T, T, T, name<T>>; }      \
  };
#define TERNARY(name, expression)                                        \
  template <class T>                                                     \
  struct name {                                                          \
    static T Apply(T a, T b, T c) { return static_cast<T>(expression); } \
    static Handler Make() { return Ternary<T, T, T, T, name<T>>; }       \
  };
#define UNARY(name, expression)                                \
  template <class T>                                           \
  struct name {                                                \
    static T Apply(T a) { return static_cast<T>(expression); } \
    static Handler Make() { return Unary<T, T, name<T>>; }     \
  };

BINARY(Add, Sum(a, b))
BINARY(Sub, static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b))
BINARY(MulLo, Product(a, b))
BINARY(MulHi, HighProduct(a, b))
BINARY(Min, a < b ? a : b)
BINARY(Max, a > b ? a : b)
// The ISA leaves division by zero unspecified; the hardware returns all ones, and a remainder of a.
BINARY(Div, b == 0                                           ? static_cast<T>(-1)
            : std::is_signed_v<T> && b == static_cast<T>(-1) ? Negative(a)
                                                             : a / b)
BINARY(Rem, b == 0 ? a : std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : a % b)
BINARY(And, a& b)
BINARY(Or, a | b)
BINARY(Xor, a ^ b)
TERNARY(MadLo, Sum(Product(a, b), c))
TERNARY(MadHi, Sum(HighProduct(a, b), c))
TERNARY(Sad, Sum(c, a < b ? Sum(b, Negative(a)) : Sum(a, Negative(b))))
UNARY(Abs, a < 0 ? Negative(a) : a)
UNARY(Neg, Negative(a))
UNARY(Not, ~a)
UNARY(Cnot, a == 0 ? 1 : 0)

// Shift amounts are 32 bits wide and clamped at the register's width.
template <class T>
struct Shl {
  static T Apply(T a, uint32_t b) {
    return b >= kBits<T> ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << b);
  }
  static Handler Make() { return Binary<T, T, uint32_t, Shl<T>>; }
};
template <class T>
struct Shr {
  static T Apply(T a, uint32_t b) {
    if (b < kBits<T>) return static_cast<T>(a >> b);
    return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
  }
  static Handler Make() { return Binary<T, T, uint32_t, Shr<T>>; }
};

template <class T>
using Doubled =
    std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                       std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;
template <class T>
struct MulWide {
  using D = Doubled<T>;
  static D Apply(T a, T b) { return static_cast<D>(a) * static_cast<D>(b); }
  static Handler Make() { return Binary<D, T, T, MulWide<T>>; }
};
// 65535 · 65535 fits in 32 unsigned bits, and −2¹⁵ · −2¹⁵ in 32 signed ones.
template <class T>
struct MadWide {
  using D = Doubled<T>;
  static D Apply(T a, T b, D c) { return Sum<D>(MulWide<T>::Apply(a, b), c); }
  static Handler Make() { return Ternary<D, T, T, D, MadWide<T>>; }
};

struct AddSat {
  static int32_t Apply(int32_t a, int32_t b) { return Saturate(int64_t{a} + b); }
};
struct SubSat {
  static int32_t Apply(int32_t a, int32_t b) { return Saturate(int64_t{a} - b); }
};
struct MadHiSat {
  static int32_t Apply(int32_t a, int32_t b, int32_t c) {
    return Saturate(int64_t{HighProduct(a, b)} + c);
  }
};
// Packed 16-bit halves.
template <class T, template <class> class F, bool relu>
struct Halves {
  static uint32_t Apply(uint32_t a, uint32_t b) {
    T low = F<T>::Apply(static_cast<T>(a), static_cast<T>(b));
    T high = F<T>::Apply(static_cast<T>(a >> 16), static_cast<T>(b >> 16));
    if (relu) low = Max<T>::Apply(low, T{0}), high = Max<T>::Apply(high, T{0});
    return static_cast<uint16_t>(low) | uint32_t{static_cast<uint16_t>(high)} << 16;
  }
};
template <template <class> class F>
Handler Packed(const Instruction& i) {
  bool is_signed = i.type[0] == Type::kS16x2;
  using U = uint32_t;
  if (is_signed && i.Has(Mod::kRelu)) return Binary<U, U, U, Halves<int16_t, F, true>>;
  if (is_signed) return Binary<U, U, U, Halves<int16_t, F, false>>;
  return Binary<U, U, U, Halves<uint16_t, F, false>>;
}

// mul24: the low or high 32 bits of the 48-bit product of the low 24 bits.
template <class T, bool high>
struct Mul24 {
  static T Operand(T a) {
    uint32_t low = static_cast<uint32_t>(a) << 8;
    return static_cast<T>(BitCast<T>(low) >> 8);
  }
  static T Apply(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    Wide product = static_cast<Wide>(Operand(a)) * static_cast<Wide>(Operand(b));
    return static_cast<T>(high ? product >> 16 : product);
  }
  static T Apply(T a, T b, T c) { return Sum(Apply(a, b), c); }
};
template <class T>
Handler Select24(const Instruction& i) {
  if (i.op == Op::kMul24) {
    return i.Has(Mod::kHi) ? Binary<T, T, T, Mul24<T, true>> : Binary<T, T, T, Mul24<T, false>>;
  }
  return i.Has(Mod::kHi) ? Ternary<T, T, T, T, Mul24<T, true>>
                         : Ternary<T, T, T, T, Mul24<T, false>>;
}

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

Outcome Lop3(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<uint32_t>(s.args[0]);
  const auto* a = w.In<uint32_t>(s.args[1]);
  const auto* b = w.In<uint32_t>(s.args[2]);
  const auto* c = w.In<uint32_t>(s.args[3]);
  uint32_t minterm[8];  // all ones where the table has a 1: row (a, b, c), a the highest bit
  for (int row = 0; row < 8; ++row) minterm[row] = 0 - static_cast<uint32_t>(s.value >> row & 1);
  ForLanes(mask, [=](int l) {
    uint32_t x = a[l], y = b[l], z = c[l];
    d[l] = (minterm[0] & ~x & ~y & ~z) | (minterm[1] & ~x & ~y & z) | (minterm[2] & ~x & y & ~z) |
           (minterm[3] & ~x & y & z) | (minterm[4] & x & ~y & ~z) | (minterm[5] & x & ~y & z) |
           (minterm[6] & x & y & ~z) | (minterm[7] & x & y & z);
  });
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

// add.cc, addc, sub.cc, subc, mad.lo.cc, madc …: a (times b) plus or minus, with CC.CF per lane.
template <class T>
Outcome Carry(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool is_mad = i.operand_count == 4, is_sub = i.op == Op::kSubc;
  bool reads = (s.value & 1) != 0, writes = i.Has(Mod::kCc);
  auto* d = w.Out<Slot<T>>(s.args[0]);
  const auto* a = w.In<Slot<T>>(s.args[1]);
  const auto* b = w.In<Slot<T>>(s.args[2]);
  const auto* c = w.In<Slot<T>>(s.args[is_mad ? 3 : 2]);
  using Wide = unsigned __int128;
  using U = Unsigned<T>;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int l = __builtin_ctz(rest);
    T left = Get<T>(a, l);
    if (is_mad)
      left = i.Has(Mod::kHi) ? HighProduct(left, Get<T>(b, l)) : Product(left, Get<T>(b, l));
    U carry = reads ? w.carry >> l & 1 : 0;
    U x = static_cast<U>(left), y = static_cast<U>(Get<T>(c, l));
    Wide result = is_sub ? Wide{x} - y - carry : Wide{x} + y + carry;
    Put<T>(d, l, static_cast<T>(static_cast<U>(result)));
    if (writes)
      w.carry = (w.carry & ~(1u << l)) | static_cast<uint32_t>(result >> kBits<T> & 1) << l;
  }
  return Outcome::kNext;
}
template <class T>
struct CarryMaker {
  static Handler Make() { return Carry<T>; }
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

Handler SelectPacked(const Instruction& i) {
  switch (i.op) {
    case Op::kAdd:
      return Packed<Add>(i);
    case Op::kMin:
      return Packed<Min>(i);
    case Op::kMax:
      return Packed<Max>(i);
    default:
      return nullptr;
  }
}

template <template <class> class F>
struct Relu {
  static int32_t Apply(int32_t a, int32_t b) {
    return Max<int32_t>::Apply(F<int32_t>::Apply(a, b), 0);
  }
};

}  // namespace

Handler SelectInteger(const Instruction& i) {
  Type type = i.type[0];
  bool is_wide = ptx::Bits(type) == 64;
  using U32 = uint32_t;
  using S32 = int32_t;
  if (type == Type::kU16x2 || type == Type::kS16x2) return SelectPacked(i);
  switch (i.op) {
    case Op::kAdd:
      return i.Has(Mod::kSat) ? Binary<S32, S32, S32, AddSat> : WithInteger<Add>(type);
    case Op::kSub:
      return i.Has(Mod::kSat) ? Binary<S32, S32, S32, SubSat> : WithInteger<Sub>(type);
    case Op::kAddc:
    case Op::kSubc:
      return WithInteger<CarryMaker>(type);
    case Op::kMul:
      if (i.Has(Mod::kHi)) return WithInteger<MulHi>(type);
      if (i.Has(Mod::kLo)) return WithInteger<MulLo>(type);
      return type == Type::kU16   ? MulWide<uint16_t>::Make()
             : type == Type::kS16 ? MulWide<int16_t>::Make()
             : type == Type::kU32 ? MulWide<uint32_t>::Make()
                                  : MulWide<int32_t>::Make();
    case Op::kMad:
      if (i.Has(Mod::kSat)) return Ternary<S32, S32, S32, S32, MadHiSat>;
      if (i.Has(Mod::kHi)) return WithInteger<MadHi>(type);
      if (i.Has(Mod::kLo)) return WithInteger<MadLo>(type);
      return type == Type::kU16   ? MadWide<uint16_t>::Make()
             : type == Type::kS16 ? MadWide<int16_t>::Make()
             : type == Type::kU32 ? MadWide<uint32_t>::Make()
                                  : MadWide<int32_t>::Make();
    case Op::kMul24:
    case Op::kMad24:
      return type == Type::kS32 ? Select24<S32>(i) : Select24<U32>(i);
    case Op::kSad:
      return WithInteger<Sad>(type);
    case Op::kDiv:
      return WithInteger<Div>(type);
    case Op::kRem:
      return WithInteger<Rem>(type);
    case Op::kMin:
      return i.Has(Mod::kRelu) ? Binary<S32, S32, S32, Relu<Min>> : WithInteger<Min>(type);
    case Op::kMax:
      return i.Has(Mod::kRelu) ? Binary<S32, S32, S32, Relu<Max>> : WithInteger<Max>(type);
    case Op::kAbs:
      return WithInteger<Abs>(type);
    case Op::kNeg:
      return WithInteger<Neg>(type);
    case Op::kAnd:
      return WithInteger<And>(type);
    case Op::kOr:
      return WithInteger<Or>(type);
    case Op::kXor:
      return WithInteger<Xor>(type);
    case Op::kNot:
      return WithInteger<Not>(type);
    case Op::kCnot:
      return WithInteger<Cnot>(type);
    case Op::kShl:
      return WithInteger<Shl>(type);
    case Op::kShr:
      return WithInteger<Shr>(type);
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
      return Lop3;
    case Op::kPrmt:
      return Prmt;
    case Op::kDp4a:
      if (type == Type::kU32) {
        return i.type[1] == Type::kU32 ? kDp4a<uint8_t, uint8_t> : kDp4a<uint8_t, int8_t>;
      }
      return i.type[1] == Type::kU32 ? kDp4a<int8_t, uint8_t> : kDp4a<int8_t, int8_t>;
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
