// Reading and writing registers by type, and loops over the lanes of a mask.
#pragma once

#include <cstring>
#include <type_traits>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

template <class To, class From>
inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Values of up to 32 bits live in 32-bit slots, 64-bit values in 64-bit slots. What a slot holds
// above a narrow register's width is not defined: whoever reads it takes the low bits.
template <class T>
using Slot = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <size_t bytes>
using Bits = std::conditional_t<
    bytes == 1, uint8_t,
    std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>>;

template <class T>
inline T Get(const Slot<T>* slots, int lane) {
  return BitCast<T>(static_cast<Bits<sizeof(T)>>(slots[lane]));
}

// Integers extend to the slot by their own sign: a narrow result may go to a wider register.
template <class T>
inline void Put(Slot<T>* slots, int lane, T value) {
  if constexpr (std::is_integral_v<T>) {
    slots[lane] = static_cast<Slot<T>>(value);
  } else {
    slots[lane] = BitCast<Bits<sizeof(T)>>(value);
  }
}

// Lanes touch only their own element, which lets the compiler vectorise the full case.
template <class F>
inline __attribute__((always_inline)) void ForLanes(uint32_t mask, F f) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
  } else {
    for (; mask != 0; mask &= mask - 1) f(__builtin_ctz(mask));
  }
}

template <class F>
inline uint32_t CollectLanes(uint32_t mask, F f) {
  uint32_t result = 0;
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) result |= static_cast<uint32_t>(f(lane)) << lane;
  } else {
    for (; mask != 0; mask &= mask - 1) {
      int lane = __builtin_ctz(mask);
      result |= static_cast<uint32_t>(f(lane)) << lane;
    }
  }
  return result;
}

template <class D, class A, class F>
Outcome Unary(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<A>>(s.args[1]);
  ForLanes(mask, [=](int l) { Put<D>(d, l, F::Apply(Get<A>(a, l))); });
  return Outcome::kNext;
}

template <class D, class A, class B, class F>
Outcome Binary(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<A>>(s.args[1]);
  const auto* b = w.In<Slot<B>>(s.args[2]);
  ForLanes(mask, [=](int l) { Put<D>(d, l, F::Apply(Get<A>(a, l), Get<B>(b, l))); });
  return Outcome::kNext;
}

template <class D, class A, class B, class C, class F>
Outcome Ternary(Warp& w, const Step& s, uint32_t mask) {
  auto* d = w.Out<Slot<D>>(s.args[0]);
  const auto* a = w.In<Slot<A>>(s.args[1]);
  const auto* b = w.In<Slot<B>>(s.args[2]);
  const auto* c = w.In<Slot<C>>(s.args[3]);
  ForLanes(mask, [=](int l) { Put<D>(d, l, F::Apply(Get<A>(a, l), Get<B>(b, l), Get<C>(c, l))); });
  return Outcome::kNext;
}

// Turns a type into a template argument: With<Maker>(type) is Maker<int32_t>::Make() for .s32 and
// so on.
template <template <class> class Maker>
Handler WithInteger(ptx::Type type) {
  using ptx::Type;
  switch (type) {
    case Type::kB8:
    case Type::kU8:
      return Maker<uint8_t>::Make();
    case Type::kB16:
    case Type::kU16:
      return Maker<uint16_t>::Make();
    case Type::kB32:
    case Type::kU32:
      return Maker<uint32_t>::Make();
    case Type::kB64:
    case Type::kU64:
      return Maker<uint64_t>::Make();
    case Type::kS8:
      return Maker<int8_t>::Make();
    case Type::kS16:
      return Maker<int16_t>::Make();
    case Type::kS32:
      return Maker<int32_t>::Make();
    case Type::kS64:
      return Maker<int64_t>::Make();
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
