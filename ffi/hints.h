// Which of many things were done before: a guess that costs one load and never waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jax_ptx {

// Things are told apart by marks, numbers whose bits are mixed. A mark may be forgotten for another
// one, and may be the mark of something else, too: what is spared must be done where it is missed.
class Hints {
 public:
  bool Has(uint64_t mark) const {
    return marks_[Place(mark)].load(std::memory_order_relaxed) == mark;
  }
  void Add(uint64_t mark) { marks_[Place(mark)].store(mark, std::memory_order_relaxed); }

 private:
  static constexpr int kBits = 10;
  static size_t Place(uint64_t mark) { return mark >> (64 - kBits); }

  std::array<std::atomic<uint64_t>, 1 << kBits> marks_{};
};

}  // namespace jax_ptx
