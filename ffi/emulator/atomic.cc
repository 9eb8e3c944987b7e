// atom and red (PTX ISA 9.7.13.5, 9.7.13.6). CTAs run in threads of the host, so they are atomic
// there too.
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
T AddHalf(T a, T b) {
  return FromDouble<T>(AddToOdd(ToDouble(a), ToDouble(b)), Rounding::kNearestEven);
}
template <class T>
struct Pair {
  T low, high;
};

template <class T>
struct Add {
  static T Apply(T old, T a, T) { return Wrapped(old, a); }
};
struct AddFloat {  // in global memory subnormals are flushed, in shared memory they are not
  static float Apply(float old, float a, float is_global) {
    if (is_global == 0) return Wrapped(old, a);
    return Flush(Wrapped(Flush(old), Flush(a)));
  }
};
template <class T>
struct AddHalves {
  static T Apply(T old, T a, T) { return AddHalf(old, a); }
};
template <class T>
struct AddPairs {
  using P = Pair<T>;
  static P Apply(P old, P a, P) { return {AddHalf(old.low, a.low), AddHalf(old.high, a.high)}; }
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

// atom d, [m], a{, b}; red [m], a.
template <class T, class F>
Outcome Atomic(Warp& w, const Step& s, uint32_t mask) {
  const Instruction& i = *s.source;
  bool has_result = i.op == Op::kAtom;
  uint32_t address = has_result ? 1 : 0;
  Places places;
  // The slow path: lanes may share an address, and go one after the other.
  if (!Locate(w, s, address, mask, sizeof(T), Access::kWrite, &places)) return Outcome::kFault;
  const auto* a = w.In<Slot<T>>(s.args[address + 1]);
  const auto* b = w.In<Slot<T>>(s.args[i.Has(Mod::kCas) ? address + 2 : address + 1]);
  auto* d = has_result ? w.Out<Slot<T>>(s.args[0]) : nullptr;
  using Word = Bits<sizeof(T)>;
  T second[kLanes];
  T first[kLanes];
  for (int l = 0; l < kLanes; ++l) first[l] = Get<T>(a, l), second[l] = Get<T>(b, l);
  if constexpr (std::is_same_v<T, float>) {
    for (int l = 0; l < kLanes; ++l) second[l] = IsShared(w, s, address, l) ? 0 : 1;
  }
  for (; mask != 0; mask &= mask - 1) {
    int l = __builtin_ctz(mask);
    uint8_t* place = places.stride >= 0 ? places.lane[0] + l * places.stride : places.lane[l];
    auto* word = reinterpret_cast<Word*>(place);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
    Word next;
    do {
      next = BitCast<Word>(F::Apply(BitCast<T>(old), first[l], second[l]));
    } while (
        !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    if (has_result) d[l] = old;
  }
  return Outcome::kNext;
}

template <template <class> class F>
Handler Integer(Type type) {
  switch (type) {
    case Type::kS32:
      return Atomic<int32_t, F<int32_t>>;
    case Type::kS64:
      return Atomic<int64_t, F<int64_t>>;
    case Type::kB16:
      return Atomic<uint16_t, F<uint16_t>>;
    case Type::kB64:
    case Type::kU64:
      return Atomic<uint64_t, F<uint64_t>>;
    default:
      return Atomic<uint32_t, F<uint32_t>>;
  }
}

Handler SelectAdd(Type type) {
  switch (type) {
    case Type::kF32:
      return Atomic<float, AddFloat>;
    case Type::kF64:
      return Atomic<double, Add<double>>;
    case Type::kF16:
      return Atomic<F16, AddHalves<F16>>;
    case Type::kBF16:
      return Atomic<BF16, AddHalves<BF16>>;
    case Type::kF16x2:
      return Atomic<Pair<F16>, AddPairs<F16>>;
    case Type::kBF16x2:
      return Atomic<Pair<BF16>, AddPairs<BF16>>;
    default:
      return Integer<Add>(type);
  }
}

}  // namespace

Handler SelectAtomic(const Instruction& i) {
  if (i.op != Op::kAtom && i.op != Op::kRed) return nullptr;
  switch (i.Pick(Mod::kCount, Mod::kAdd, Mod::kMin, Mod::kMax, Mod::kAnd, Mod::kOr, Mod::kXor,
                 Mod::kExch, Mod::kCas, Mod::kInc, Mod::kDec)) {
    case Mod::kAdd:
      return SelectAdd(i.type[0]);
    case Mod::kMin:
      return Integer<Min>(i.type[0]);
    case Mod::kMax:
      return Integer<Max>(i.type[0]);
    case Mod::kAnd:
      return Integer<And>(i.type[0]);
    case Mod::kOr:
      return Integer<Or>(i.type[0]);
    case Mod::kXor:
      return Integer<Xor>(i.type[0]);
    case Mod::kExch:
      return Integer<Exch>(i.type[0]);
    case Mod::kCas:
      return Integer<Cas>(i.type[0]);
    case Mod::kInc:
      return Integer<Inc>(i.type[0]);
    case Mod::kDec:
      return Integer<Dec>(i.type[0]);
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
