// What an observed run watches beside the checks that are always on: counts, memory that nothing
// has written, rows that belong to other CTAs, a trace, and, when asked for, races. Such a run
// takes one cluster after the other, in order, so that it says the same every time.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "emulator/count.h"
#include "emulator/memory.h"

namespace jax_ptx::emulator {

class Race;

class Monitor {
 public:
  Monitor(const Launch& launch, Observation* observation);
  ~Monitor();

  void Start(Cluster& cluster);
  // The warp's lanes in `mask` have run the step.
  void Executed(const Warp& warp, const Step& step, uint32_t mask);
  // They are about to access memory.
  void Touched(Warp& warp, const Step& step, const Touch& touch);
  void Exited(const Cta& cta);
  // The kernel is over, with a fault or without one.
  void Finish(const Finding& fault);

  void Add(Finding finding, const Step& step, const Step& other);

 private:
  struct Target {
    Memory memory;
    size_t index;  // of the tensor, or of the CTA whose shared memory it is
    bool is_tensor;
  };
  Target TargetOf(const Warp& warp, ptx::Space space, uint64_t address) const;
  void CheckWritten(const Warp& warp, const Step& step, const Touch& touch, uint32_t mask,
                    const Target& target);
  void CheckRows(const Warp& warp, const Step& step, const Touch& touch, uint32_t mask,
                 const Target& target);

  const Launch& launch_;
  Observation& observation_;
  Counts counts_;
  // Which bytes have a value: of each CTA's shared memory, and of each result; empty: all have.
  std::vector<std::vector<uint8_t>> shared_, results_;
  std::unique_ptr<Race> race_;
  std::map<std::pair<Kind, std::pair<const Step*, const Step*>>, size_t> known_;
};

}  // namespace jax_ptx::emulator
