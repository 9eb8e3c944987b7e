// Loads, stores and the checks of their addresses (PTX ISA 9.7.9.8 to 9.7.9.12).
#include "emulator/memory.h"

#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/monitor.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Op;
using ptx::Space;
using ptx::Type;

const Region* FindRegion(const Launch& launch, uint64_t address) {
  uint64_t slot = address >> kSlotBits;
  if (slot - kFirstTensorSlot < launch.tensors.size())
    return &launch.tensors[slot - kFirstTensorSlot];
  if (slot - kFirstVariableSlot < launch.variables.size()) {
    return &launch.variables[slot - kFirstVariableSlot];
  }
  return nullptr;
}

// [begin, end) and host memory that hold one virtual address, of whatever space it is.
struct Window {
  uint64_t begin = 0, end = 0;
  uint8_t* host = nullptr;
  bool is_writable = true;
  bool is_gone = false;  // the shared memory of a CTA that has exited
};

bool FindShared(const Warp& w, uint64_t address, Window* window) {
  uint64_t rank = address >> kSharedRankShift & 0xFF;
  const auto& ctas = w.cta->cluster->ctas;
  if (rank > ctas.size()) return false;
  const Cta& cta = rank == 0 ? *w.cta : ctas[rank - 1];
  window->begin = address & ~((uint64_t{1} << kSharedRankShift) - 1);
  window->end = window->begin + w.cta->cluster->launch->shared_bytes;
  window->host = cta.shared;
  window->is_gone = cta.live_threads == 0;
  return true;
}

bool FindWindow(const Warp& w, Space space, int lane, uint64_t address, Window* window) {
  const Launch& launch = *w.cta->cluster->launch;
  uint64_t slot = address >> kSlotBits;
  if (space == Space::kShared)
    return slot == 0 && address >> 32 == 0 && FindShared(w, address, window);
  if (space == Space::kNone && slot == kSharedSlot) return FindShared(w, address, window);
  bool is_local = space == Space::kLocal || space == Space::kParam;
  if (is_local || (space == Space::kNone && slot == kLocalSlot)) {
    window->begin = space == Space::kNone ? kLocalSlot << kSlotBits : 0;
    window->end = window->begin + launch.program->local_bytes;
    window->host = w.local + static_cast<size_t>(lane) * launch.program->local_bytes;
    return true;
  }
  const Region* region = FindRegion(launch, address);
  if (region == nullptr) return false;
  window->begin = region->begin;
  window->end = region->end;
  window->host = region->host;
  window->is_writable = region->is_writable;
  return true;
}

inline bool Inside(const Window& window, uint64_t address, uint32_t bytes) {
  return address >= window.begin && address <= window.end && window.end - address >= bytes;
}

}  // namespace

uint64_t AddressOf(const Warp& w, const Step& s, uint32_t arg, int lane) {
  if (s.is_address_wide) return w.In<uint64_t>(s.args[arg])[lane] + s.value;
  return static_cast<uint32_t>(w.In<uint32_t>(s.args[arg])[lane] + static_cast<uint32_t>(s.value));
}

namespace {

uint8_t* LocateOne(Warp& w, const Step& s, int lane, Space space, uint64_t address, uint32_t bytes,
                   Access access) {
  Window window;
  if (!FindWindow(w, space, lane, address, &window) || !Inside(window, address, bytes)) {
    ReportOutside(w, s, lane, space, address, bytes, access);
    return nullptr;
  }
  if (window.is_gone) {
    Report(w, s, lane,
           "access to the shared memory of CTA " +
               std::to_string((address >> kSharedRankShift & 0xFF) - 1) +
               " of the cluster, which has exited; a barrier.cluster at its end would keep it",
           Kind::kExitedPeer);
    return nullptr;
  }
  if ((address & (bytes - 1)) != 0) {
    ReportMisaligned(w, s, lane, space, address, bytes);
    return nullptr;
  }
  if (IsWrite(access) && !window.is_writable) {
    ReportReadOnly(w, s, lane, space, address);
    return nullptr;
  }
  return window.host + (address - window.begin);
}

}  // namespace

namespace {

// Lanes whose lowest and highest address lie in one window all lie there.
bool LocateTogether(Warp& w, uint32_t mask, Space space, const uint64_t* address, uint32_t bytes,
                    Access access, Places* places) {
  if (space == Space::kLocal || space == Space::kParam) return false;
  uint64_t lowest = ~uint64_t{0}, highest = 0, low_bits = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    uint64_t one = address[__builtin_ctz(rest)];
    lowest = std::min(lowest, one);
    highest = std::max(highest, one);
    low_bits |= one;
  }
  Window window;
  if ((low_bits & (bytes - 1)) != 0 || lowest >> kSlotBits == kLocalSlot ||
      !FindWindow(w, space, 0, lowest, &window) || !Inside(window, lowest, bytes) ||
      !Inside(window, highest, bytes) || window.is_gone ||
      (IsWrite(access) && !window.is_writable)) {
    return false;
  }
  uint8_t* begin = window.host + (lowest - window.begin);
  ForLanes(mask, [=](int l) { places->lane[l] = begin + (address[l] - lowest); });
  return true;
}

}  // namespace

bool LocateLanes(Warp& w, const Step& s, uint32_t mask, Space space, const uint64_t* address,
                 uint32_t bytes, Access access, Places* places) {
  places->stride = -1;
  uint32_t rest = LocateTogether(w, mask, space, address, bytes, access, places) ? 0 : mask;
  for (; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    places->lane[lane] = LocateOne(w, s, lane, space, address[lane], bytes, access);
    if (places->lane[lane] == nullptr) return false;
  }
  Monitor* monitor = w.cta->cluster->monitor;
  if (monitor != nullptr) monitor->Touched(w, s, {access, mask, bytes, space, address, places});
  return true;
}

uint8_t* LocateLane(Warp& w, const Step& s, int lane, Space space, uint64_t address, uint32_t bytes,
                    Access access) {
  uint64_t addresses[kLanes];
  Places places;
  addresses[lane] = address;
  bool is_there = LocateLanes(w, s, 1u << lane, space, addresses, bytes, access, &places);
  return is_there ? places.lane[lane] : nullptr;
}

bool Locate(Warp& w, const Step& s, uint32_t arg, uint32_t mask, uint32_t bytes, Access access,
            Places* places) {
  Monitor* monitor = w.cta->cluster->monitor;
  uint64_t address[kLanes];
  if (s.is_address_wide) {
    const auto* base = w.In<uint64_t>(s.args[arg]);
    for (int l = 0; l < kLanes; ++l) address[l] = base[l] + s.value;
  } else {
    const auto* base = w.In<uint32_t>(s.args[arg]);
    auto offset = static_cast<uint32_t>(s.value);
    for (int l = 0; l < kLanes; ++l) address[l] = static_cast<uint32_t>(base[l] + offset);
  }
  // The usual case: all lanes, equal distances, one window. Then the first and the last lane
  // decide.
  if (mask == kAllLanes && s.space != Space::kLocal && s.space != Space::kParam) {
    uint64_t stride = address[1] - address[0], difference = 0;
    for (int l = 1; l < kLanes; ++l) difference |= (address[l] - address[l - 1]) ^ stride;
    Window window;
    if (difference == 0 && stride < (1u << 20) && ((address[0] | stride) & (bytes - 1)) == 0 &&
        (s.space != Space::kNone || address[0] >> kSlotBits != kLocalSlot) &&
        FindWindow(w, s.space, 0, address[0], &window) && Inside(window, address[0], bytes) &&
        Inside(window, address[kLanes - 1], bytes) && !window.is_gone &&
        (!IsWrite(access) || window.is_writable)) {
      places->stride = static_cast<int64_t>(stride);
      places->lane[0] = window.host + (address[0] - window.begin);
      if (monitor != nullptr)
        monitor->Touched(w, s, {access, mask, bytes, s.space, address, places});
      return true;
    }
  }
  return LocateLanes(w, s, mask, s.space, address, bytes, access, places);
}

namespace {

// `count` elements of type T for each lane. The argument of the address follows the registers.
template <class T, int count>
Outcome Load(Warp& w, const Step& s, uint32_t mask) {
  constexpr uint32_t kBytes = sizeof(T) * count;
  Places places;
  if (!Locate(w, s, count, mask, kBytes, Access::kRead, &places)) return Outcome::kFault;
  Slot<T>* d[count];
  for (int e = 0; e < count; ++e) d[e] = w.Out<Slot<T>>(s.args[e]);
  auto load = [&](int l, const uint8_t* place) {
    for (int e = 0; e < count; ++e) {
      T value;
      std::memcpy(&value, place + e * sizeof(T), sizeof(T));
      Put<T>(d[e], l, value);
    }
  };
  const uint8_t* first = places.lane[0];
  if (places.stride == kBytes) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) load(l, first + l * kBytes);
  } else if (places.stride >= 0) {
    for (int l = 0; l < kLanes; ++l) load(l, first + l * places.stride);
  } else {
    for (; mask != 0; mask &= mask - 1) {
      int l = __builtin_ctz(mask);
      load(l, places.lane[l]);
    }
  }
  return Outcome::kNext;
}

// The address comes first, then the registers.
template <class T, int count>
Outcome Store(Warp& w, const Step& s, uint32_t mask) {
  constexpr uint32_t kBytes = sizeof(T) * count;
  Places places;
  if (!Locate(w, s, 0, mask, kBytes, Access::kWrite, &places)) return Outcome::kFault;
  const Slot<T>* a[count];
  for (int e = 0; e < count; ++e) a[e] = w.In<Slot<T>>(s.args[1 + e]);
  auto store = [&](int l, uint8_t* place) {
    for (int e = 0; e < count; ++e) {
      T value = Get<T>(a[e], l);
      std::memcpy(place + e * sizeof(T), &value, sizeof(T));
    }
  };
  uint8_t* first = places.lane[0];
  if (places.stride == kBytes) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) store(l, first + l * kBytes);
  } else if (places.stride >= 0) {
    for (int l = 0; l < kLanes; ++l) store(l, first + l * places.stride);
  } else {
    for (; mask != 0; mask &= mask - 1) {
      int l = __builtin_ctz(mask);
      store(l, places.lane[l]);
    }
  }
  return Outcome::kNext;
}

template <class T>
Handler Choose(const Instruction& i) {
  bool is_load = i.op == Op::kLd;
  switch (i.vector) {
    case 1:
      return is_load ? Load<T, 1> : Store<T, 1>;
    case 2:
      return is_load ? Load<T, 2> : Store<T, 2>;
    case 4:
      return is_load ? Load<T, 4> : Store<T, 4>;
    default:
      return is_load ? Load<T, 8> : Store<T, 8>;
  }
}

}  // namespace

Handler SelectMemory(const Instruction& i) {
  if (i.op != Op::kLd && i.op != Op::kSt) return nullptr;
  if (i.vector * ptx::Bytes(i.type[0]) > 32) return nullptr;
  switch (i.type[0]) {
    case Type::kS8:
      return Choose<int8_t>(i);
    case Type::kS16:
      return Choose<int16_t>(i);
    default:
      break;
  }
  switch (ptx::Bits(i.type[0])) {
    case 8:
      return Choose<uint8_t>(i);
    case 16:
      return Choose<uint16_t>(i);
    case 32:
      return Choose<uint32_t>(i);
    case 64:
      return Choose<uint64_t>(i);
    default:
      return nullptr;
  }
}

}  // namespace jax_ptx::emulator
