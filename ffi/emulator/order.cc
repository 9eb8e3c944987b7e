#include "emulator/order.h"

#include <algorithm>

#include "emulator/compile.h"
#include "emulator/handlers.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Mod;
using ptx::Op;

constexpr uint32_t kMbarrierSlots = 64;
enum Agent { kAsyncCopy, kBulkRead, kBulkWrite, kAgents };

bool HasAgent(const ptx::Instruction& i) {
  if (i.op == Op::kMbarrierArrive) return i.Has(Mod::kRelaxed);
  return IsAsync(i.op) && i.op != Op::kMbarrier && i.op != Op::kMbarrierWait;
}

}  // namespace

Strength StrengthOf(const ptx::Instruction& i) {
  Strength strength;
  strength.acquires = i.Has(Mod::kAcquire) || i.Has(Mod::kAcqRel) || i.Has(Mod::kSc);
  strength.releases = i.Has(Mod::kRelease) || i.Has(Mod::kAcqRel) || i.Has(Mod::kSc);
  bool is_atomic = i.op == Op::kAtom || i.op == Op::kRed;
  bool is_strong = is_atomic || i.op == Op::kFence || strength.acquires || strength.releases ||
                   i.Has(Mod::kRelaxed) || i.Has(Mod::kVolatile) || i.Has(Mod::kMmio);
  // fence.acq_rel and fence.sc, and membar, are both.
  if (i.op == Op::kFence && strength.acquires == strength.releases)
    strength.acquires = strength.releases = true;
  if (is_strong) strength.scope = i.Has(Mod::kCta) ? 1 : i.Has(Mod::kCluster) ? 2 : 3;
  return strength;
}

Order::Order(const Launch& launch) {
  const Dim3& cluster = launch.geometry.cluster;
  threads_of_cta_ = (launch.threads + kLanes - 1) / kLanes * kLanes;
  threads_ = threads_of_cta_ * static_cast<uint32_t>(cluster[0] * cluster[1] * cluster[2]);
  for (const Step& step : launch.program->steps) has_agents_ |= HasAgent(*step.source);
  slots_ = threads_ + (has_agents_ ? kAgents * threads_ + kMbarrierSlots : 0);
}

void Order::Start(Cluster& cluster) {
  cluster.order = this;
  cluster_ = cluster.index;
  now_.assign(slots_, 1);
  auto nothing = std::make_shared<Known>();
  nothing->clock.assign(slots_, 0);
  views_.assign(threads_, nothing);
  last_old_ = last_news_ = last_new_ = nullptr;
  if (has_agents_) {
    done_.assign(threads_, {});
    groups_.assign(threads_, {});
  }
  meetings_.clear();
  mbarriers_.clear();
  fenced_.clear();
  seen_.clear();
  waited_.assign(threads_, nullptr);
  narrow_.clear();
}

uint32_t Order::SlotOf(const Warp& w, int lane) const {
  return w.cta->rank * threads_of_cta_ + w.index * kLanes + static_cast<uint32_t>(lane);
}

bool Order::IsBefore(const Epoch& epoch, uint32_t thread) const {
  const Known& known = *views_[thread];
  if (epoch.cluster != cluster_) {
    auto other = known.others.find(epoch.cluster);
    return other != known.others.end() && (*other->second)[epoch.slot] >= epoch.clock;
  }
  if (epoch.slot == thread) return true;
  if (epoch.slot >= threads_ && epoch.slot % threads_ == thread &&
      epoch.slot < (1 + kAgents) * threads_) {
    uint32_t kind = epoch.slot / threads_ - 1;
    if (epoch.clock <= done_[thread][kind]) return true;
  }
  return known.clock[epoch.slot] >= epoch.clock;
}

bool Order::HasSeen(const Epoch& epoch, uint32_t thread) const {
  return std::any_of(seen_.begin(), seen_.end(), [&](const auto& entry) {
    const auto& [other, seen] = entry;
    if (!IsBefore({cluster_, other, seen.clock}, thread)) return false;
    auto known = seen.view->others.find(epoch.cluster);
    return known != seen.view->others.end() && (*known->second)[epoch.slot] >= epoch.clock;
  });
}

// ---- what threads know ----

bool Order::Covers(const Known& a, const Known& b) {
  for (size_t i = 0; i < b.clock.size(); ++i) {
    if (b.clock[i] > a.clock[i]) return false;
  }
  for (const auto& [cluster, clock] : b.others) {
    auto own = a.others.find(cluster);
    if (own == a.others.end()) return false;
    if (own->second == clock) continue;
    for (size_t i = 0; i < clock->size(); ++i) {
      if ((*clock)[i] > (*own->second)[i]) return false;
    }
  }
  return true;
}

void Order::Join(Known* into, const Known& from) {
  if (into->clock.empty()) {
    into->clock = from.clock;
  } else {
    for (size_t i = 0; i < from.clock.size(); ++i) {
      into->clock[i] = std::max(into->clock[i], from.clock[i]);
    }
  }
  for (const auto& [cluster, clock] : from.others) {
    auto [own, is_new] = into->others.emplace(cluster, clock);
    if (is_new || own->second == clock) continue;
    auto sum = std::make_shared<Clock>(*own->second);
    for (size_t i = 0; i < clock->size(); ++i) (*sum)[i] = std::max((*sum)[i], (*clock)[i]);
    own->second = std::move(sum);
  }
}

Order::Snapshot Order::Take(uint32_t thread) const {
  Snapshot snapshot{views_[thread], now_[thread], {}, 3};
  if (has_agents_) snapshot.done = done_[thread];
  return snapshot;
}

void Order::Publish(Known* into, uint32_t thread, const Snapshot& snapshot) const {
  Join(into, *snapshot.view);
  Raise(into, thread, snapshot);
}

void Order::Raise(Known* into, uint32_t thread, const Snapshot& snapshot) const {
  uint32_t& own = into->clock[thread];
  own = std::max(own, snapshot.own);
  for (int kind = 0; has_agents_ && kind < kAgents; ++kind) {
    uint32_t& done = into->clock[Agent(kind, thread)];
    done = std::max(done, snapshot.done[static_cast<size_t>(kind)]);
  }
}

// What the fences before now covered: the thread's own, and others' that it is ordered behind.
bool Order::PublishFenced(Known* into, uint32_t thread, uint8_t least_scope) const {
  bool has_any = false;
  const Known* last = nullptr;
  for (const auto& [other, snapshot] : fenced_) {
    if (snapshot.scope < least_scope) continue;
    if (!IsBefore({cluster_, other, snapshot.own}, thread)) continue;
    has_any = true;
    if (snapshot.view.get() != last || into->clock.empty()) Join(into, *snapshot.view);
    last = snapshot.view.get();
    Raise(into, other, snapshot);
  }
  return has_any;
}

void Order::Learn(View* known, const View& news) {
  View& view = *known;
  if (view != last_old_ || news != last_news_) {
    last_old_ = view;
    last_news_ = news;
    if (Covers(*view, *news)) {
      last_new_ = view;
    } else if (Covers(*news, *view)) {
      last_new_ = news;
    } else {
      auto sum = std::make_shared<Known>(*view);
      Join(sum.get(), *news);
      last_new_ = std::move(sum);
    }
  }
  view = last_new_;
}

void Order::EndCta(uint32_t rank) {
  end_ = Known();
  View last;
  for (uint32_t thread = rank * threads_of_cta_; thread < (rank + 1) * threads_of_cta_; ++thread) {
    if (views_[thread] != last) Join(&end_, *(last = views_[thread]));
  }
}

// ---- meetings ----

void Order::Release(const void* object, const Warp& w, uint32_t mask, bool is_relaxed) {
  Known& pending = meetings_[object].pending;
  const Known* last = nullptr;
  for (; mask != 0; mask &= mask - 1) {
    uint32_t thread = SlotOf(w, __builtin_ctz(mask));
    if (is_relaxed) {  // only what its last fence came behind
      auto fenced = fenced_.find(thread);
      if (fenced != fenced_.end()) Publish(&pending, thread, fenced->second);
      continue;
    }
    if (views_[thread].get() != last) {  // the lanes of a warp mostly know the same
      last = views_[thread].get();
      Join(&pending, *last);
    }
    pending.clock[thread] = now_[thread]++;
    for (int kind = 0; has_agents_ && kind < kAgents; ++kind) {
      uint32_t& done = pending.clock[Agent(kind, thread)];
      done = std::max(done, done_[thread][static_cast<size_t>(kind)]);
    }
  }
}

void Order::Complete(const void* object, bool keeps_older) {
  Meeting& meeting = meetings_[object];
  if (keeps_older && meeting.done != nullptr) Join(&meeting.pending, *meeting.done);
  if (meeting.pending.clock.empty()) meeting.pending.clock.assign(slots_, 0);
  meeting.done = std::make_shared<Known>(std::move(meeting.pending));
  meeting.pending = Known();
}

void Order::Acquire(const void* object, const Warp& w, uint32_t mask, bool is_relaxed) {
  if (mask == 0) return;
  auto meeting = meetings_.find(object);
  if (meeting == meetings_.end() || meeting->second.done == nullptr) return;
  const View& done = meeting->second.done;
  for (; mask != 0; mask &= mask - 1) {
    uint32_t thread = SlotOf(w, __builtin_ctz(mask));
    if (!is_relaxed) {
      Learn(&views_[thread], done);
    } else if (View& waited = waited_[thread]; waited == nullptr) {
      waited = done;
    } else {
      Learn(&waited, done);
    }
  }
}

void Order::Forget(const void* object) { meetings_.erase(object); }

// ---- fences and strong accesses ----

void Order::Fence(const Warp& w, const Step& s, uint32_t mask) {
  Strength strength = StrengthOf(*s.source);
  for (; mask != 0; mask &= mask - 1) {
    uint32_t thread = SlotOf(w, __builtin_ctz(mask));
    if (strength.acquires) {
      for (const auto& [other, seen] : seen_) {
        if (IsBefore({cluster_, other, seen.clock}, thread)) Learn(&views_[thread], seen.view);
      }
      if (waited_[thread] != nullptr) Learn(&views_[thread], waited_[thread]);
      waited_[thread] = nullptr;
    }
    if (strength.releases) {
      Snapshot& fenced = fenced_[thread] = Take(thread);
      fenced.scope = strength.scope;
      ++now_[thread];
    }
  }
}

Order::Known& Order::At(Locations& locations, const uint8_t* place) {
  auto [entry, is_new] = locations.try_emplace(place);
  Location& location = entry->second;
  if (!is_new && location.cluster != cluster_) {
    location.known.others[location.cluster] =
        std::make_shared<Clock>(std::move(location.known.clock));
    location.known.clock.clear();
  }
  location.cluster = cluster_;
  if (location.known.clock.empty()) location.known.clock.assign(slots_, 0);
  return location.known;
}

void Order::Synchronize(uint32_t thread, const uint8_t* place, bool is_shared, Access access,
                        const ptx::Instruction& instruction) {
  Strength strength = StrengthOf(instruction);
  if (access != Access::kWrite) {
    for (Locations* locations : {&narrow_, &wide_}) {
      if (locations == &wide_ && strength.scope < 3) continue;
      if (locations->find(place) == locations->end()) continue;
      const Known& released = At(*locations, place);
      if (strength.acquires) {
        Learn(&views_[thread], std::make_shared<Known>(released));
      } else {
        Seen& seen = seen_[thread];
        auto sum = std::make_shared<Known>(released);
        if (seen.view != nullptr) Join(sum.get(), *seen.view);
        seen = {std::move(sum), now_[thread]};
      }
    }
  }
  if (access == Access::kRead) return;
  if (access ==
      Access::kWrite) {  // a store ends what was released there, an atomic goes on with it
    narrow_.erase(place);
    wide_.erase(place);
  }
  bool is_wide = !is_shared && strength.scope == 3;
  Known released;
  if (strength.releases) {
    Publish(&released, thread, Take(thread));
    ++now_[thread];
  } else if (!PublishFenced(&released, thread, is_wide ? 3 : 1)) {
    return;
  }
  Join(&At(is_wide ? wide_ : narrow_, place), released);
}

// ---- copies ----

void Order::BeginCopy(Copier copier, uint32_t thread, const void* mbarrier) {
  if (copier == Copier::kMbarrier) {
    uint32_t next = static_cast<uint32_t>(mbarriers_.size()) % kMbarrierSlots;
    uint32_t index = mbarriers_.emplace(mbarrier, next).first->second;
    read_slot_ = write_slot_ = (1 + kAgents) * threads_ + index;
  } else if (copier == Copier::kAsync) {
    read_slot_ = write_slot_ = Agent(kAsyncCopy, thread);
  } else {
    read_slot_ = Agent(kBulkRead, thread);
    write_slot_ = Agent(kBulkWrite, thread);
  }
}

void Order::Land(const void* mbarrier) {
  Known& pending = meetings_[mbarrier].pending;
  if (pending.clock.empty()) pending.clock.assign(slots_, 0);
  pending.clock[write_slot_] = now_[write_slot_]++;
}

void Order::LandAsync(const void* mbarrier, uint32_t thread) {
  if (!has_agents_) return;
  write_slot_ = Agent(kAsyncCopy, thread);
  Land(mbarrier);
}

void Order::Commit(Copier copier, const Warp& w, uint32_t mask) {
  if (!has_agents_) return;
  for (; mask != 0; mask &= mask - 1) {
    uint32_t thread = SlotOf(w, __builtin_ctz(mask));
    // The clocks of a thread's bulk reads and writes go together.
    bool is_bulk = copier == Copier::kBulk;
    groups_[thread][is_bulk].push_back(now_[Agent(is_bulk ? kBulkRead : kAsyncCopy, thread)]);
    ++now_[Agent(is_bulk ? kBulkRead : kAsyncCopy, thread)];
    if (is_bulk) ++now_[Agent(kBulkWrite, thread)];
  }
}

void Order::Wait(Copier copier, const Warp& w, uint32_t mask, uint32_t left, bool only_reads) {
  if (!has_agents_) return;
  if (left == ~0u) Commit(copier, w, mask);
  for (; mask != 0; mask &= mask - 1) {
    uint32_t thread = SlotOf(w, __builtin_ctz(mask));
    const Clock& groups = groups_[thread][copier == Copier::kBulk];
    size_t leave = left == ~0u ? 0 : left;
    if (groups.size() <= leave) continue;
    uint32_t done = groups[groups.size() - 1 - leave];
    auto& own = done_[thread];
    if (copier == Copier::kAsync) own[kAsyncCopy] = std::max(own[kAsyncCopy], done);
    if (copier == Copier::kBulk) own[kBulkRead] = std::max(own[kBulkRead], done);
    if (copier == Copier::kBulk && !only_reads) own[kBulkWrite] = std::max(own[kBulkWrite], done);
  }
}

}  // namespace jax_ptx::emulator
