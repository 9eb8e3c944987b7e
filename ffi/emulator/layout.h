// Where everything of a kernel stands: functions that it calls, registers, variables.
#pragma once

#include <map>
#include <vector>

#include "emulator/compile.h"

namespace jax_ptx::emulator {

// Where a function's registers stand.
struct Frame {
  uint32_t first_number = 0;  // of Warp::defined
  uint32_t first_predicate = 0;
  std::vector<uint32_t> offsets;  // bytes in the register file
  uint32_t return_offset = 0;
  uint32_t first_step = 0;
  bool is_done = false;
};

struct Layout {
  std::vector<uint32_t> reachable;         // functions, the entry first
  std::map<uint32_t, Frame> frames;        // by function
  std::map<uint32_t, uint64_t> addresses;  // of the variables that they use
  uint32_t scratch = 0;                    // kScratchSlots 32-bit slots
  uint32_t sink = 0;                       // what `_` stands for
  uint32_t sink_predicate = 0;             // and behind it false and true
  uint32_t predicate_base = 0;             // number of the first predicate
};
// The first numbers of Warp::defined: the scratch slots, then the carry of add.cc.
constexpr uint32_t kScratchSlots = 9;
constexpr uint32_t kCarryNumber = kScratchSlots;
constexpr uint32_t kBitsSlots = 9;  // a destination and eight elements, or the other way round

// Fills the layout, and the sizes in `program`.
Status LayOut(const ptx::Module& module, const ptx::Function& entry, Program* program,
              Layout* layout);

}  // namespace jax_ptx::emulator
