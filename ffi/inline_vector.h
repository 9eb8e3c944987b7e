// A vector of small plain values that stays off the heap up to N of them: the launch path allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace jax_ptx {

template <class T, size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved by copying their bytes");

 public:
  InlineVector() = default;
  InlineVector(const InlineVector& other) { *this = other; }
  InlineVector& operator=(const InlineVector& other) {
    if (this == &other) return *this;
    if (other.size_ <= N) {  // the rest of the room was never written
      std::memcpy(inline_, other.inline_, other.size_ * sizeof(T));
    }
    heap_ = other.heap_;
    size_ = other.size_;
    return *this;
  }

  void push_back(const T& value) {
    if (size_ < N) {
      std::memcpy(inline_ + size_ * sizeof(T), &value, sizeof(T));
    } else {
      if (size_ == N) heap_.assign(begin(), end());
      heap_.push_back(value);
    }
    ++size_;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ <= N ? reinterpret_cast<T*>(inline_) : heap_.data(); }
  const T* data() const { return size_ <= N ? reinterpret_cast<const T*>(inline_) : heap_.data(); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  alignas(T) std::byte inline_[N * sizeof(T)];  // all elements, or none of more than N
  std::vector<T> heap_;
  size_t size_ = 0;
};

}  // namespace jax_ptx
