// Counts of an observed run: instructions, bytes, sectors of global memory, bank conflicts.
#pragma once

#include <vector>

#include "emulator/memory.h"

namespace jax_ptx::emulator {

class Counts {
 public:
  explicit Counts(const Program& program);

  void Executed(const Step& step, uint32_t mask);
  // The touches of `mask` all mean the same kind of memory.
  void Touched(const Step& step, const Touch& touch, uint32_t mask, Memory memory);
  // Adds everything to the observation, by instruction.
  void Report(Observation* observation) const;

 private:
  struct Count {
    uint64_t warps, threads, sectors, least_sectors, conflicts;
  };
  void CountSectors(const Touch& touch, uint32_t mask, Count* count) const;
  void CountConflicts(const Touch& touch, uint32_t mask, Count* count) const;

  const Program& program_;
  std::vector<Count> counts_;  // by step
  uint64_t bytes_[kMemories][kDirections] = {};
};

}  // namespace jax_ptx::emulator
