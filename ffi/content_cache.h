// A process-wide cache whose key is what the value was made from: a PTX text and an entry name.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "launch.h"
#include "status.h"

namespace jax_ptx {

// Many readers, one writer. A value is made outside the cache's lock; threads that want the same
// one wait for the first of them. Nothing is ever evicted: XLA's executables and the CUDA graphs
// recorded from them hold on to what was found here. The record's hash only chooses the candidates;
// text and entry are then compared in full.
template <class Value>
class ContentCache {
 public:
  // The value of the record's text and entry, which `make`, a function to Result<Value>, makes
  // where there is none. What it refuses it is asked again.
  template <class Make>
  Result<const Value*> FindOrMake(const LaunchRecord& record, const Make& make) {
    Item& item = FindOrAdd(record);
    if (const Value* value = item.value.load(std::memory_order_acquire)) return value;
    std::lock_guard lock(item.making);
    if (const Value* value = item.value.load(std::memory_order_relaxed)) return value;
    Result<Value> made = make();
    if (!made.ok()) return made.status();
    item.made = std::make_unique<const Value>(std::move(*made));
    item.value.store(item.made.get(), std::memory_order_release);
    return item.made.get();
  }

 private:
  struct Item {
    explicit Item(const LaunchRecord& record) : ptx(record.ptx), entry(record.entry) {}
    bool Is(const LaunchRecord& record) const { return entry == record.entry && ptx == record.ptx; }

    const std::string ptx, entry;
    std::mutex making;
    std::unique_ptr<const Value> made;
    std::atomic<const Value*> value{nullptr};
  };

  Item& FindOrAdd(const LaunchRecord& record) {
    // One load in place of the lock, which threads of several devices would hand to each other, and
    // of the way through the map.
    std::atomic<Item*>& recent = recent_[static_cast<uint64_t>(record.key) % recent_.size()];
    if (Item* item = recent.load(std::memory_order_acquire); item != nullptr && item->Is(record)) {
      return *item;
    }
    Item& item = FindOrAddLocked(record);
    recent.store(&item, std::memory_order_release);
    return item;
  }

  Item& FindOrAddLocked(const LaunchRecord& record) {
    {
      std::shared_lock lock(mutex_);
      if (Item* item = FindLocked(record)) return *item;
    }
    auto item = std::make_unique<Item>(record);
    std::unique_lock lock(mutex_);
    if (Item* first = FindLocked(record)) return *first;
    return *items_.emplace(record.key, std::move(item))->second;
  }

  Item* FindLocked(const LaunchRecord& record) const {
    auto [item, end] = items_.equal_range(record.key);
    for (; item != end; ++item) {
      if (item->second->Is(record)) return item->second.get();
    }
    return nullptr;
  }

  std::array<std::atomic<Item*>, 256> recent_{};
  mutable std::shared_mutex mutex_;
  std::unordered_multimap<int64_t, std::unique_ptr<Item>> items_;
};

}  // namespace jax_ptx
