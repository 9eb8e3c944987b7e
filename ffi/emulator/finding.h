// What a run found, and what an observed run counted: plain data for whoever reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch.h"
#include "status.h"

namespace jax_ptx::emulator {

enum class Kind : uint8_t {
  kInvalid,  // an operand or a use that the ISA leaves undefined
  kOutOfBounds,
  kMisaligned,
  kReadOnly,
  kUninitialised,    // shared memory, a result or what matters of a register: without a value
  kUnwrittenOutput,  // bytes of a result that no thread wrote
  kBarrier,          // a barrier that the threads do not reach as it counts them
  kDeadlock,
  kWaitsForCta,   // global memory that perhaps a CTA is to write which runs later here
  kExitedPeer,    // shared memory of a CTA of the cluster that has exited
  kInactiveLane,  // an exchange with a lane that does not take part
  kRace,
  kForeignRow,  // a store outside the rows of the CTA
  kStopped,     // trap, or a failed assertion
  kStepLimit,
};
const char* Name(Kind kind);  // "out_of_bounds"

// An instruction that a thread ran.
struct Site {
  uint32_t line = 0;  // 0: none
  std::string instruction;
  Dim3 cta{}, thread{};
};

struct Finding {
  Code code = Code::kOk;
  Kind kind = Kind::kInvalid;
  std::string message;
  Site site, other;    // of a race, the later and the earlier access
  std::string memory;  // the parameter or variable, or "shared memory"
  int64_t offset = 0;  // in it, in bytes
  uint64_t count = 1;  // how often the same two instructions met
  bool set() const { return code != Code::kOk; }
};

// What the steps of one instruction did, over all warps.
struct InstructionCount {
  uint32_t line = 0;
  std::string_view text;       // as written; it lives as long as the module
  uint64_t warps = 0;          // executions by a warp
  uint64_t threads = 0;        // active threads of all of them
  uint64_t sectors = 0;        // 32-byte sectors of global memory
  uint64_t least_sectors = 0;  // that would hold the same bytes if they were contiguous
  uint64_t conflicts = 0;      // passes over the banks of shared memory beyond the least number
};

enum class Memory : uint8_t { kGlobal, kConst, kShared, kLocal };
constexpr int kMemories = 4;
enum class Direction : uint8_t { kRead, kWrite, kAtomic };
constexpr int kDirections = 3;

struct TraceEntry {
  Dim3 cta;
  uint32_t warp, lanes, line;
  std::string_view text;
};

// Asked for, and filled in, by an observed run.
struct Observation {
  bool race_check = false;
  uint64_t trace_limit = 0;             // instructions
  std::vector<uint64_t> own_row_bytes;  // of each tensor: what a cluster may write; 0: everything

  Dim3 grid{};
  bool has_fault = false;  // the last finding ended the run
  std::vector<Finding> findings;
  std::vector<InstructionCount> instructions;
  uint64_t bytes[kMemories][kDirections] = {};
  std::vector<TraceEntry> trace;
};

}  // namespace jax_ptx::emulator
