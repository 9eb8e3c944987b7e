// Which accesses happen before which (PTX ISA, "Memory Consistency Model"), as vector clocks. A
// slot of a clock is a thread of the cluster, or what copies memory on a thread's or an mbarrier's
// behalf. Modelled are
//   bar and barrier (arrive releases, sync and red acquire too), bar.warp.sync, barrier.cluster;
//   mbarriers: an arrival releases to those who wait for its phase; a copy that completes on one
//   tells them of its own bytes, not of what its thread had done before (the ISA, "Asynchronous
//   Operations"); cp.async and bulk groups: what the thread waited for is done, for it and for whom
//   it releases to; acquire and release accesses and atomics, and relaxed and volatile ones beside
//   a fence.
// shfl, vote, redux and the like order nothing, and neither does running in one warp.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "emulator/memory.h"

namespace jax_ptx::emulator {

// What a strong access or a fence says of itself.
struct Strength {
  uint8_t scope = 0;  // 0: a weak access; 1: CTA, 2: cluster, 3: GPU and system
  bool acquires = false, releases = false;
};
Strength StrengthOf(const ptx::Instruction& instruction);

// A moment of a slot.
struct Epoch {
  int64_t cluster = 0;
  uint32_t slot = 0;
  uint32_t clock = 0;
};

class Order {
 public:
  explicit Order(const Launch& launch);

  void Start(Cluster& cluster);
  uint32_t SlotOf(const Warp& warp, int lane) const;
  uint32_t RankOf(uint32_t thread_slot) const { return thread_slot / threads_of_cta_; }
  uint32_t ThreadOf(uint32_t thread_slot) const { return thread_slot % threads_of_cta_; }
  Epoch Now(uint32_t slot) const { return {cluster_, slot, now_[slot]}; }
  bool IsBefore(const Epoch& epoch, uint32_t thread) const;

  // Whether the thread, or one that it is ordered behind, saw by a relaxed access what was released
  // behind that moment of another cluster: then a fence of its own would order them.
  bool HasSeen(const Epoch& epoch, uint32_t thread) const;

  // A CTA has ended: what its threads knew then.
  void EndCta(uint32_t rank);
  bool IsBeforeEnd(const Epoch& epoch) const { return end_.clock[epoch.slot] >= epoch.clock; }

  // Objects where threads meet: they release to it, its phase completes, they acquire from it.
  void Release(const void* object, const Warp& warp, uint32_t mask, bool is_relaxed = false);
  void Complete(const void* object, bool keeps_older = false);
  // Relaxed ones release what the thread's last fence came behind, and acquire with its next one.
  void Acquire(const void* object, const Warp& warp, uint32_t mask, bool is_relaxed = false);
  void Forget(const void* object);  // an mbarrier begins anew

  void Fence(const Warp& warp, const Step& step, uint32_t mask);
  // A strong access of a thread to a place, after its check.
  void Synchronize(uint32_t thread, const uint8_t* place, bool is_shared, Access access,
                   const ptx::Instruction& instruction);

  // Copies. What a thread issues between Begin and End reads and writes as these slots.
  enum class Copier { kAsync, kBulk, kMbarrier };
  void BeginCopy(Copier copier, uint32_t thread, const void* mbarrier = nullptr);
  uint32_t ReadSlot() const { return read_slot_; }
  uint32_t WriteSlot() const { return write_slot_; }
  // The copy that began last completes on the mbarrier; or all cp.async of the thread so far.
  void Land(const void* mbarrier);
  void LandAsync(const void* mbarrier, uint32_t thread);
  void Commit(Copier copier, const Warp& warp, uint32_t mask);
  // All but the `left` latest groups are done; ~0u: there is no group, everything is.
  void Wait(Copier copier, const Warp& warp, uint32_t mask, uint32_t left, bool only_reads);

 private:
  using Clock = std::vector<uint32_t>;
  struct Known {
    Clock clock;  // of the running cluster; empty: nothing
    std::map<int64_t, std::shared_ptr<const Clock>> others;
  };
  using View = std::shared_ptr<const Known>;
  struct Meeting {
    Known pending;
    View done;
  };
  struct Snapshot {  // of what a thread knew at its last fence
    View view;
    uint32_t own = 0;
    std::array<uint32_t, 3> done = {};
    uint8_t scope = 0;
  };
  struct Seen {  // what relaxed reads of a thread came upon, and when the last one did
    View view;
    uint32_t clock = 0;
  };
  struct Location {
    int64_t cluster = 0;
    Known known;
  };
  using Locations = std::unordered_map<const uint8_t*, Location>;

  static bool Covers(const Known& a, const Known& b);
  static void Join(Known* into, const Known& from);
  Snapshot Take(uint32_t thread) const;
  void Publish(Known* into, uint32_t thread, const Snapshot& snapshot) const;
  void Raise(Known* into, uint32_t thread, const Snapshot& snapshot) const;
  bool PublishFenced(Known* into, uint32_t thread, uint8_t least_scope) const;
  void Learn(View* known, const View& news);
  Known& At(Locations& locations, const uint8_t* place);
  uint32_t Agent(int kind, uint32_t thread) const { return (1 + kind) * threads_ + thread; }

  int64_t cluster_ = 0;
  uint32_t threads_of_cta_ = 0, threads_ = 0, slots_ = 0;
  bool has_agents_ = false;
  Clock now_;                                  // of every slot
  std::vector<View> views_;                    // of every thread
  View last_old_, last_news_, last_new_;       // Learn's last answer: threads ask alike
  std::vector<std::array<uint32_t, 3>> done_;  // of each thread's agents
  std::vector<std::array<Clock, 2>> groups_;   // committed: cp.async, bulk
  std::unordered_map<const void*, Meeting> meetings_;
  std::unordered_map<const void*, uint32_t> mbarriers_;  // the copier that completes on it
  std::unordered_map<uint32_t, Snapshot> fenced_;
  std::unordered_map<uint32_t, Seen> seen_;
  std::vector<View> waited_;  // of every thread: what its relaxed waits came behind
  Locations narrow_, wide_;   // what was released there: within the cluster, to every CTA
  uint32_t read_slot_ = 0, write_slot_ = 0;
  Known end_;
};

}  // namespace jax_ptx::emulator
