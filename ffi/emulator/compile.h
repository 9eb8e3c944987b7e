// A kernel of a module, made ready to run: register file laid out, constants laid down, handlers
// chosen.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "emulator/warp.h"

namespace jax_ptx::emulator {

// A special register that the kernel reads, and where its 32 lanes stand in the register file.
struct SpecialSlot {
  ptx::Special special;
  uint32_t offset;
  bool is_wide;
};

// For messages. A dynamic variable has no size of its own: it ends where shared memory does.
struct SharedVariable {
  std::string_view name;
  uint32_t begin = 0, bytes = 0;
};

// What the system keeps for itself where shared memory begins, sm_80 and later.
constexpr uint32_t kReservedSharedBytes = 1024;

struct Program {
  const ptx::Module* module = nullptr;
  const ptx::Function* entry = nullptr;
  std::vector<Step> steps;
  std::vector<uint32_t> numbers;    // the steps' args, reads, writes and numbers of the args
  std::vector<uint64_t> constants;  // 32 lanes of each
  std::vector<SpecialSlot> specials;
  std::vector<uint32_t> globals;        // module variables in .global and .const, by region
  uint64_t parameters = 0;              // address of the parameter space, the region behind them
  std::vector<std::string_view> names;  // of Warp::defined's numbers
  std::vector<SharedVariable> shared_variables;
  uint32_t register_bytes = 0;
  uint32_t first_predicate = 0;        // number of predicate 0
  uint32_t predicate_count = 0;        // the last three are a sink and constants: false, true
  uint32_t bits = 0;                   // where undefined.cc moves undefined bits, among registers
  uint32_t local_bytes = 0;            // a thread, .param variables of calls included
  uint32_t reserved_shared_bytes = 0;  // kReservedSharedBytes, or none
  uint32_t static_shared_bytes = 0;    // these included
};

// `parameters` holds the kernel's parameter space.
Result<std::unique_ptr<Program>> Compile(const ptx::Module& module, const ptx::Function& entry,
                                         const std::vector<uint8_t>& parameters);

// The programs of an entry: one for each content of the parameter space, of which a process sees
// few, since tensors have the same virtual addresses in every run.
class Programs {
 public:
  Result<std::shared_ptr<const Program>> Find(const ptx::Module& module, const ptx::Function& entry,
                                              const std::vector<uint8_t>& parameters);

 private:
  using Entry = std::pair<std::vector<uint8_t>, std::shared_ptr<const Program>>;
  std::mutex mutex_;
  std::vector<Entry> recent_;  // the most recent one last
};

}  // namespace jax_ptx::emulator
