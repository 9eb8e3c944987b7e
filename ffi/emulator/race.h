// Data races: two accesses of the same bytes, at least one a write, that nothing orders (order.h)
// and that are not both strong within a scope that holds both threads. Two writes of the same value
// are let pass.
//
// Memory is looked at in granules, as small as the smallest access of the kernel. Of each granule
// the accesses are kept that may still race with a later one: the last weak write, and every read,
// strong write and atomic since that a later access has not been ordered behind (of up to 64
// warps).
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "emulator/memory.h"
#include "emulator/order.h"

namespace jax_ptx::emulator {

class Monitor;

class Race {
 public:
  Race(const Launch& launch, Monitor& monitor);

  Order& order() { return order_; }
  void Start(Cluster& cluster);
  // The last thread of the CTA has exited, and its shared memory goes.
  void Exit(const Cta& cta);
  // The lanes of `mask` touch the shared memory of the CTA of rank `shared`, or a region.
  void TouchShared(Warp& warp, const Step& step, const Touch& touch, uint32_t mask, size_t rank);
  void TouchRegion(Warp& warp, const Step& step, const Touch& touch, uint32_t mask, size_t region);

 private:
  // One execution of a step, or several between which the threads' clocks stood still.
  struct Record {
    Epoch first;  // of lane 0; a lane's slot lies as much higher
    uint32_t step = 0;
    uint32_t thread = 0;  // slot of lane 0, or of the thread that issued the copy
    uint8_t scope = 0;
    bool is_copy = false;
  };
  struct Entry {  // lanes of a record
    uint32_t record;
    uint32_t lanes;
  };
  using Entries = std::vector<Entry>;
  // 0: none; a record and a lane; or, with bit 31, the number of a list of entries.
  using Handle = uint32_t;
  struct Cell {
    Handle write, read;
  };
  struct Attempt {  // what the granules are checked for
    Warp& warp;
    const Step& step;
    const Touch& touch;
    uint8_t scope;
    bool is_write, is_copy;
  };
  struct Cells {
    std::unique_ptr<Cell[], void (*)(void*)> cells{nullptr, std::free};
    uint64_t first = 0;  // granule
    uint64_t count = 0;
  };

  void Visit(Warp& warp, const Step& step, const Touch& touch, uint32_t mask, Cell* cells,
             uint64_t first, bool is_shared);
  void Check(const Attempt& attempt, Cell& cell, uint32_t record, int lane, uint32_t lanes,
             uint32_t offset);
  bool CheckAll(const Attempt& attempt, Handle handle, bool is_write, int lane, uint32_t offset);
  bool IsBefore(const Record& record, uint32_t lane, uint32_t thread) const;
  bool AreStrong(const Record& record, const Attempt& attempt) const;
  bool WritesTheSame(const Attempt& attempt, uint32_t record, uint32_t other, int lane,
                     uint32_t offset) const;
  void Report(const Attempt& attempt, const Record& record, uint32_t lane_of_other, bool was_write,
              int lane, uint32_t offset);
  uint32_t RecordOf(const Attempt& attempt, int lane);
  Entries EntriesOf(Handle handle) const;
  Handle Keep(Handle old, Entries entries);
  void Free(Handle& handle);
  Cells MakeCells(uint64_t begin, uint64_t end, int shift) const;

  const Launch& launch_;
  Monitor& monitor_;
  Order order_;
  int64_t cluster_ = 0;
  int shared_shift_ = 0, global_shift_ = 0;  // log2 of the granules
  int shift_ = 0;                            // of the access at hand
  std::vector<Cells> shared_, regions_;
  std::vector<size_t> cells_of_;  // of each region: regions over the same memory share theirs
  std::vector<Record> records_;
  std::vector<uint32_t> recent_;  // records by a hash of what makes them the same
  std::vector<Entries> lists_;
  std::vector<uint32_t> free_lists_;
};

}  // namespace jax_ptx::emulator
