// A vector of small plain values that stays off the heap up to N of them: the launch path allocates
// nothing.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace jax_ptx {

template <class T, size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved by copying their bytes");

 public:
  void push_back(const T& value) {
    if (size_ < N) {
      inline_[size_] = value;
    } else {
      if (size_ == N) heap_.assign(inline_.begin(), inline_.end());
      heap_.push_back(value);
    }
    ++size_;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ <= N ? inline_.data() : heap_.data(); }
  const T* data() const { return size_ <= N ? inline_.data() : heap_.data(); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  std::array<T, N> inline_;  // holds all elements, or none once there are more than N
  std::vector<T> heap_;
  size_t size_ = 0;
};

}  // namespace jax_ptx
