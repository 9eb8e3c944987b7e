// atom and red (PTX ISA 9.7.13.5, 9.7.13.6). CTAs run in threads of the host, so they are atomic
// there too.
#include "emulator/atomic.h"

#include "emulator/handlers.h"
#include "emulator/memory.h"
#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Type;

template <class T>
T Wrapped(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
}
inline float Wrapped(float a, float b) { return Canonical(a + b); }
inline double Wrapped(double a, double b) { return a + b; }

template <class T>
struct Add {
  static T Apply(T old, T a, T) { return Wrapped(old, a); }
};
struct AddFlushed {  // of float32 in global memory; in shared memory subnormals stay
  static float Apply(float old, float a, float) { return Flush(Wrapped(Flush(old), Flush(a))); }
};
template <class T>
struct AddHalf {
  static T Apply(T old, T a, T) { return FromDouble<T>(AddToOdd(ToDouble(old), ToDouble(a))); }
};
// A NaN loses against a number, and −0 is smaller than +0.
template <class T, bool is_max>
struct ExtremeHalf {
  static T Apply(T old, T a, T) {
    double x = ToDouble(old), y = ToDouble(a);
    if (x != x) return y != y ? T{0x7FFF} : a;
    if (y != y) return old;
    bool is_below = x < y || (x == y && (old.bits & 0x8000));
    return is_below != is_max ? old : a;
  }
};
template <class T>
using MinHalf = ExtremeHalf<T, false>;
template <class T>
using MaxHalf = ExtremeHalf<T, true>;
template <class T>
struct Pair {
  T low, high;
};
template <class T, class F>
struct Both {
  using P = Pair<T>;
  static P Apply(P old, P a, P) {
    return {F::Apply(old.low, a.low, a.low), F::Apply(old.high, a.high, a.high)};
  }
};

template <class T>
struct Min {
  static T Apply(T old, T a, T) { return a < old ? a : old; }
};
template <class T>
struct Max {
  static T Apply(T old, T a, T) { return a > old ? a : old; }
};
template <class T>
struct And {
  static T Apply(T old, T a, T) { return old & a; }
};
template <class T>
struct Or {
  static T Apply(T old, T a, T) { return old | a; }
};
template <class T>
struct Xor {
  static T Apply(T old, T a, T) { return old ^ a; }
};
template <class T>
struct Exch {
  static T Apply(T, T a, T) { return a; }
};
template <class T>
struct Cas {
  static T Apply(T old, T a, T b) { return old == a ? b : old; }
};
template <class T>
struct Inc {
  static T Apply(T old, T a, T) { return old >= a ? 0 : old + 1; }
};
template <class T>
struct Dec {
  static T Apply(T old, T a, T) { return old == 0 || old > a ? a : old - 1; }
};

bool IsShared(const Warp& w, const Step& s, uint32_t address, int lane) {
  if (s.space != ptx::Space::kNone) return s.space == ptx::Space::kShared;
  return AddressOf(w, s, address, lane) >> kSlotBits == kSharedSlot;
}

template <class T, class F>
uint64_t UpdateWith(uint8_t* place, uint64_t a, uint64_t b) {
  using Word = Bits<sizeof(T)>;
  auto* word = reinterpret_cast<Word*>(place);
  T first = BitCast<T>(static_cast<Word>(a)), second = BitCast<T>(static_cast<Word>(b));
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
  Word next;
  do {
    next = BitCast<Word>(F::Apply(BitCast<T>(old), first, second));
  } while (
      !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

// atom d, [m], a{, b}; red [m], a; or vectors of d and a, each element on its own. Lanes may share
// an address, and go one after the other.
template <class S>
Outcome Atomic(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  uint32_t count = s.vector, address = i.op == Op::kAtom ? count : 0;
  uint32_t bytes = ptx::Bytes(i.type[0]);
  const uint32_t* sources = s.args + address + 1;
  const auto* second = w.In<S>(sources[i.Has(Mod::kCas) ? 1 : 0]);
  Places places;
  if (!Locate(w, s, address, mask, bytes * count, Access::kAtomic, &places)) return Outcome::kFault;
  for (; mask != 0; mask &= mask - 1) {
    int l = __builtin_ctz(mask);
    uint8_t* place = places.stride >= 0 ? places.lane[0] + l * places.stride : places.lane[l];
    Update update = SelectUpdate(i, IsShared(w, s, address, l));
    S first[8];  // a result may go to the register of a later element
    for (uint32_t e = 0; e < count; ++e) first[e] = w.In<S>(sources[e])[l];
    for (uint32_t e = 0; e < count; ++e) {
      uint64_t old = update(place + e * bytes, first[e], second[l]);
      if (i.op == Op::kAtom) w.Out<S>(s.args[e])[l] = static_cast<S>(old);
    }
  }
  return Outcome::kNext;
}

template <template <class> class F>
Update Integer(Type type) {
  switch (type) {
    case Type::kS32:
      return UpdateWith<int32_t, F<int32_t>>;
    case Type::kS64:
      return UpdateWith<int64_t, F<int64_t>>;
    case Type::kB16:
      return UpdateWith<uint16_t, F<uint16_t>>;
    case Type::kB64:
    case Type::kU64:
      return UpdateWith<uint64_t, F<uint64_t>>;
    default:
      return UpdateWith<uint32_t, F<uint32_t>>;
  }
}

template <template <class> class F>
Update Half(Type type) {
  switch (type) {
    case Type::kF16:
      return UpdateWith<F16, F<F16>>;
    case Type::kBF16:
      return UpdateWith<BF16, F<BF16>>;
    case Type::kF16x2:
      return UpdateWith<Pair<F16>, Both<F16, F<F16>>>;
    default:
      return UpdateWith<Pair<BF16>, Both<BF16, F<BF16>>>;
  }
}

}  // namespace

Update SelectUpdate(const Instruction& i, bool is_shared) {
  Type type = i.type[0];
  bool is_half = ptx::IsFloat(type) && type != Type::kF32 && type != Type::kF64;
  switch (i.Pick(Mod::kCount, Mod::kAdd, Mod::kMin, Mod::kMax, Mod::kAnd, Mod::kOr, Mod::kXor,
                 Mod::kExch, Mod::kCas, Mod::kInc, Mod::kDec)) {
    case Mod::kAdd:
      if (is_half) return Half<AddHalf>(type);
      if (type == Type::kF64) return UpdateWith<double, Add<double>>;
      if (type == Type::kF32)
        return is_shared ? UpdateWith<float, Add<float>> : UpdateWith<float, AddFlushed>;
      return Integer<Add>(type);
    case Mod::kMin:
      return is_half ? Half<MinHalf>(type) : Integer<Min>(type);
    case Mod::kMax:
      return is_half ? Half<MaxHalf>(type) : Integer<Max>(type);
    case Mod::kAnd:
      return Integer<And>(type);
    case Mod::kOr:
      return Integer<Or>(type);
    case Mod::kXor:
      return Integer<Xor>(type);
    case Mod::kExch:
      return Integer<Exch>(type);
    case Mod::kCas:
      return Integer<Cas>(type);
    case Mod::kInc:
      return Integer<Inc>(type);
    default:
      return Integer<Dec>(type);
  }
}

Handler SelectAtomic(const Instruction& i) {
  if (i.op != Op::kAtom && i.op != Op::kRed) return nullptr;
  return ptx::Bits(i.type[0]) == 64 ? Atomic<uint64_t> : Atomic<uint32_t>;
}

}  // namespace jax_ptx::emulator
