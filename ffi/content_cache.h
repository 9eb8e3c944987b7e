// A process-wide cache whose key is what the value was made from: a PTX text and an entry name.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "launch.h"

namespace jax_ptx {

// Many readers, one writer; a value is made outside the lock, and of two made at once the first
// inserted stays. Nothing is ever evicted: XLA's executables and the CUDA graphs recorded from them
// hold on to what was found here. The record's hash only chooses the candidates; text and entry are
// then compared in full.
template <class Value>
class ContentCache {
 public:
  // Null when there is none.
  const Value* Find(const LaunchRecord& record) const {
    std::shared_lock lock(mutex_);
    return FindLocked(record);
  }

  const Value* Insert(const LaunchRecord& record, Value value) {
    auto item = std::make_unique<Item>(
        Item{std::string(record.ptx), std::string(record.entry), std::move(value)});
    std::unique_lock lock(mutex_);
    if (const Value* first = FindLocked(record)) return first;
    return &items_.emplace(record.key, std::move(item))->second->value;
  }

 private:
  struct Item {
    std::string ptx, entry;
    Value value;
  };

  const Value* FindLocked(const LaunchRecord& record) const {
    auto [item, end] = items_.equal_range(record.key);
    for (; item != end; ++item) {
      if (item->second->ptx == record.ptx && item->second->entry == record.entry) {
        return &item->second->value;
      }
    }
    return nullptr;
  }

  mutable std::shared_mutex mutex_;
  std::unordered_multimap<int64_t, std::unique_ptr<Item>> items_;
};

}  // namespace jax_ptx
