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
// mad24.hi.sat.s32
struct Mad24Sat {
  static int32_t Apply(int32_t a, int32_t b, int32_t c) {
    return Saturate(int64_t{Mul24<int32_t, true>::Apply(a, b)} + c);
  }
};
template <class T>
Handler Select24(const Instruction& i) {
  if (i.op == Op::kMul24) {
    return i.Has(Mod::kHi) ? Binary<T, T, T, Mul24<T, true>> : Binary<T, T, T, Mul24<T, false>>;
  }
  return i.Has(Mod::kHi) ? Ternary<T, T, T, T, Mul24<T, true>>
                         : Ternary<T, T, T, T, Mul24<T, false>>;
}

// add.cc, addc, sub.cc, subc, mad.lo.cc, madc …: a (times b) plus or minus, with CC.CF per lane.
// Hardware subtracts by adding ~b and a carry, so CF is set when nothing is borrowed; it shows
// where addc follows sub.cc, as in nvcc's division of 128 bits.
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
    U carry = reads ? w.carry >> l & 1 : is_sub;
    U x = static_cast<U>(left), y = static_cast<U>(Get<T>(c, l));
    Wide result = Wide{x} + (is_sub ? static_cast<U>(~y) : y) + carry;
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
      if (i.Has(Mod::kSat)) return Ternary<S32, S32, S32, S32, Mad24Sat>;
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
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
