// The state of a running cluster, and what an instruction's handler sees of it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/finding.h"
#include "launch.h"
#include "ptx/program.h"
#include "status.h"

namespace jax_ptx::emulator {

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;
constexpr uint32_t kNone = ptx::kNone;
constexpr int kBarriers = 16;

// The virtual address space. Every tensor has a terabyte of its own with the data in the middle, so
// an access that leaves it, in whichever direction, is known to belong to it: addresses never
// depend on the host.
constexpr int kSlotBits = 40;
constexpr uint64_t kSlotMiddle = uint64_t{1} << (kSlotBits - 1);
constexpr uint64_t kFirstTensorSlot = 1;
constexpr uint64_t kFirstVariableSlot = 4096;
constexpr uint64_t kMaxVariables = 4096;
constexpr uint64_t VariableSlot(uint64_t number) {
  return (kFirstVariableSlot + number) << kSlotBits | kSlotMiddle;
}
constexpr uint64_t kSharedSlot = 0x10000;  // generic addresses of .shared and .local
constexpr uint64_t kLocalSlot = 0x10001;
// A 32-bit shared address: the offset, and 1 + the CTA's rank when mapa made it, else 0.
constexpr int kSharedRankShift = 24;
constexpr uint64_t kMaxSharedBytes = 227 * 1024;

struct Warp;
struct Step;

enum class Outcome : uint8_t {
  kNext,    // go on behind the instruction
  kMarked,  // the same, and Warp::defined is up to date already
  kJump,    // the handler has set the program counters
  kRetry,   // the handler has blocked some lanes; the rest are chosen anew
  kFault,   // the handler has recorded an error
};

using Handler = Outcome (*)(Warp& warp, const Step& step, uint32_t mask);

constexpr uint32_t kWideArgument = 0x80000000;  // see Step

// A decoded instruction, ready to run. `args` are encoded operands, see Warp. Behind `writes` comes
// what undefined.cc needs: how many of the args are destinations, how many there are, and of each
// its number in Warp::defined (with kWideArgument when it has 64 bits), or kNone.
struct Step {
  Handler run = nullptr;
  Handler inner = nullptr;  // what a wrapping handler (a rounding mode) runs
  const uint32_t* args = nullptr;
  const uint32_t* reads = nullptr;  // numbers in Warp::defined
  const uint32_t* writes = nullptr;
  uint8_t read_count = 0;
  uint8_t write_count = 0;
  uint8_t vector = 1;
  bool guard_negated = false;
  bool is_address_wide = false;  // the address register has 64 bits
  ptx::Space space = ptx::Space::kNone;
  uint32_t guard = kNone;
  uint32_t target = 0;
  uint64_t value = 0;  // address offset, or what the handler wants
  const ptx::Instruction* source = nullptr;
};

// A buffer or a module variable at its virtual address.
struct Region {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint8_t* host = nullptr;
  bool is_writable = false;
  bool is_poisoned = false;  // a result, which starts without a value
  std::string name;          // for messages: parameter 2 (`y`)
};

struct Program;
struct Cta;
class Monitor;
class Order;

// What a lane's register holds that no instruction wrote, or computed from such a value.
struct UndefinedValue {
  uint64_t bits = 0;    // of the register that have no value
  uint32_t origin = 0;  // the register that nothing has written
  uint32_t line = 0;    // that read it first
};

struct CopyGroup {  // cp.async of one thread that has not been waited for
  uint64_t destination, source;
  uint32_t bytes, zeros;
};

// Operands: bit 31 of an argument picks the constants instead of the warp's registers, the rest is
// a byte offset. A predicate's argument is its number, and bit 31 negates it.
struct Warp {
  const uint8_t* bank[2] = {};  // registers, constants
  uint8_t* registers = nullptr;
  uint32_t* predicates = nullptr;
  uint32_t* defined = nullptr;  // per register: lanes in which every bit of it has a value
  uint8_t* local = nullptr;     // local_bytes for each lane

  uint32_t pc = 0;
  uint32_t stop = kNone;         // other lanes stand here: regroup on reaching it
  uint32_t active = 0;           // the lanes that run at pc
  uint32_t live = 0;             // not exited
  uint32_t blocked = 0;          // wait at a barrier or for lanes of their warp
  bool is_uniform = true;        // all live lanes are at pc; lane_pc is stale
  uint32_t carry = 0;            // CC.CF per lane
  uint32_t sync_wait = 0;        // blocked until the other lanes of a .sync instruction come
  uint32_t cluster_wait = 0;     // blocked in barrier.cluster.wait
  uint32_t cluster_arrived = 0;  // has arrived in the current phase of the cluster barrier
  uint32_t mbarrier_wait = 0;    // blocked in mbarrier.try_wait
  uint32_t slice = 0;            // steps left before other lanes or warps get their turn
  uint32_t exits_seen = 0;
  uint32_t index = 0;     // in the CTA
  uint32_t existing = 0;  // lanes that the block size fills
  Cta* cta = nullptr;
  std::array<uint32_t, kLanes> lane_pc = {};
  std::map<uint32_t, std::array<UndefinedValue, kLanes>> undefined;  // of the others, once read
  std::array<std::vector<uint32_t>, kLanes> async_groups;            // sizes are few: kept simple

  template <class S>
  const S* In(uint32_t arg) const {
    return reinterpret_cast<const S*>(bank[arg >> 31] + (arg & 0x7FFFFFFF));
  }
  template <class S>
  S* Out(uint32_t arg) {
    return reinterpret_cast<S*>(registers + arg);
  }
  uint32_t Predicate(uint32_t arg) const {
    uint32_t value = predicates[arg & 0x7FFFFFFF];
    return arg >> 31 ? ~value : value;
  }
  void SetPredicate(uint32_t arg, uint32_t mask, uint32_t value) {
    predicates[arg] = (predicates[arg] & ~mask) | (value & mask);
  }
};

struct Barrier {
  uint32_t expected = 0;    // threads, 0: nobody has come yet
  uint32_t arrived = 0;     // by bar.arrive
  uint32_t first_pc = 0;    // where `expected` was given
  bool is_red = false;      // somebody came by bar.red, and takes a result
  uint32_t true_count = 0;  // threads whose predicate held
  bool all_true = true;
  std::vector<uint32_t> waiting;  // per warp: lanes
};

struct Cluster;

struct Cta {
  Dim3 id{};
  uint32_t rank = 0;  // in the cluster
  uint8_t* shared = nullptr;
  uint32_t live_threads = 0;
  std::vector<Warp> warps;
  std::array<Barrier, kBarriers> barriers;
  Cluster* cluster = nullptr;
};

struct Launch;  // what all clusters share

struct Cluster {
  const Launch* launch = nullptr;
  int64_t index = 0;
  int64_t later = 0;  // clusters that have not begun
  std::vector<Cta> ctas;
  Monitor* monitor = nullptr;  // of an observed run
  Order* order = nullptr;      // of a run with the race check
  uint64_t steps_left = 0;
  uint32_t arrived = 0;  // threads at the cluster barrier
  uint32_t live_threads = 0;
  Finding fault;
};

struct Launch {
  const Program* program = nullptr;
  Geometry geometry;
  std::array<int64_t, 3> clusters{};
  uint32_t threads = 0;       // a CTA
  uint32_t shared_bytes = 0;  // static and dynamic
  std::vector<Region> tensors, variables;
};

}  // namespace jax_ptx::emulator
