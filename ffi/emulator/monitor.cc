#include "emulator/monitor.h"

#include <algorithm>
#include <cstring>

#include "emulator/compile.h"
#include "emulator/race.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Space;

constexpr size_t kMostFindings = 64;

// The first of `bytes` flags that is not set, or `bytes`.
uint32_t FirstUnset(const uint8_t* flags, uint32_t bytes) {
  uint32_t i = 0;
  while (i < bytes && flags[i] != 0) ++i;
  return i;
}

bool IsAllSet(const uint8_t* flags, size_t bytes) {
  return std::memchr(flags, 0, bytes) == nullptr;
}

}  // namespace

Monitor::Monitor(const Launch& launch, Observation* observation)
    : launch_(launch), observation_(*observation), counts_(*launch.program) {
  for (const Region& region : launch.tensors) {
    results_.emplace_back(region.is_poisoned ? region.end - region.begin : 0);
  }
  observation->grid = launch.geometry.grid;
  const Dim3& cluster = launch.geometry.cluster;
  shared_.resize(static_cast<size_t>(cluster[0] * cluster[1] * cluster[2]));
  if (observation->race_check) race_ = std::make_unique<Race>(launch, *this);
}

Monitor::~Monitor() = default;

void Monitor::Start(Cluster& cluster) {
  cluster.monitor = this;
  for (auto& flags : shared_) flags.assign(launch_.shared_bytes, 0);
  if (race_ != nullptr) race_->Start(cluster);
}

void Monitor::Executed(const Warp& w, const Step& s, uint32_t mask) {
  counts_.Executed(s, mask);
  if (observation_.trace.size() < observation_.trace_limit && s.source->line != 0) {
    bool is_first = &s == launch_.program->steps.data() || (&s)[-1].source != s.source;
    if (!is_first) return;  // an instruction in several steps
    observation_.trace.push_back({w.cta->id, w.index, mask, s.source->line, s.source->text});
  }
}

void Monitor::Exited(const Cta& cta) {
  if (race_ != nullptr && shared_.size() > 1) race_->Exit(cta);
}

Monitor::Target Monitor::TargetOf(const Warp& w, Space space, uint64_t address) const {
  uint64_t slot = address >> kSlotBits;
  if (space == Space::kShared || (space == Space::kNone && slot == kSharedSlot)) {
    uint64_t rank = address >> kSharedRankShift & 0xFF;
    return {Memory::kShared, rank == 0 ? w.cta->rank : rank - 1, false};
  }
  if (space == Space::kLocal || space == Space::kParam || slot == kLocalSlot)
    return {Memory::kLocal, 0, false};
  if (slot - kFirstTensorSlot < launch_.tensors.size())
    return {Memory::kGlobal, slot - kFirstTensorSlot, true};
  size_t variable = slot - kFirstVariableSlot;
  bool is_constant = !launch_.variables[variable].is_writable;
  return {is_constant ? Memory::kConst : Memory::kGlobal, variable, false};
}

void Monitor::Touched(Warp& w, const Step& s, const Touch& touch) {
  uint32_t rest = touch.mask;
  while (rest != 0) {
    uint64_t first = touch.address[__builtin_ctz(rest)];
    Target target = TargetOf(w, touch.space, first);
    uint32_t mask = rest;
    if (touch.places->stride < 0) {  // else one window holds them all
      mask = 0;
      for (uint32_t lanes = rest; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        Target other = TargetOf(w, touch.space, touch.address[lane]);
        bool is_same = other.memory == target.memory && other.index == target.index &&
                       other.is_tensor == target.is_tensor;
        mask |= is_same ? 1u << lane : 0;
      }
    }
    rest &= ~mask;
    counts_.Touched(s, touch, mask, target.memory);
    if (target.memory == Memory::kShared || target.is_tensor) {
      CheckWritten(w, s, touch, mask, target);
      if (target.is_tensor && IsWrite(touch.access)) CheckRows(w, s, touch, mask, target);
    }
    if (race_ == nullptr || target.memory == Memory::kLocal) continue;
    if (target.memory == Memory::kShared) {
      race_->TouchShared(w, s, touch, mask, target.index);
    } else {
      size_t before = target.is_tensor ? 0 : launch_.tensors.size();
      race_->TouchRegion(w, s, touch, mask, before + target.index);
    }
  }
}

void Monitor::CheckWritten(const Warp& w, const Step& s, const Touch& touch, uint32_t mask,
                           const Target& target) {
  auto& flags = target.is_tensor ? results_[target.index] : shared_[target.index];
  if (flags.empty()) return;
  uint64_t base = target.is_tensor ? launch_.tensors[target.index].begin : 0;
  uint64_t offsets = target.is_tensor ? ~uint64_t{0} : (uint64_t{1} << kSharedRankShift) - 1;
  bool is_read = touch.access == Access::kRead || touch.access == Access::kCopyRead ||
                 touch.access == Access::kAtomic;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    uint64_t address = touch.address[lane];
    uint8_t* place = flags.data() + ((address & offsets) - base);
    if (is_read && !IsAllSet(place, touch.bytes)) {
      Meaning meaning = MeaningOf(w, touch.space, address + FirstUnset(place, touch.bytes));
      Finding finding = MakeFinding(w, s, lane, Kind::kUninitialised,
                                    "reads " + meaning.text + ", which nothing has written before");
      finding.memory = meaning.memory;
      finding.offset = meaning.offset;
      Add(std::move(finding), s, s);
    }
    if (IsWrite(touch.access)) std::memset(place, 1, touch.bytes);
  }
}

void Monitor::CheckRows(const Warp& w, const Step& s, const Touch& touch, uint32_t mask,
                        const Target& target) {
  if (target.index >= observation_.own_row_bytes.size()) return;
  uint64_t own = observation_.own_row_bytes[target.index];
  if (own == 0) return;
  auto cluster = static_cast<uint64_t>(w.cta->id[0] / launch_.geometry.cluster[0]);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    uint64_t offset = touch.address[lane] - launch_.tensors[target.index].begin;
    if (offset / own == cluster && (offset + touch.bytes - 1) / own == cluster) continue;
    Meaning meaning = MeaningOf(w, touch.space, touch.address[lane]);
    Finding finding = MakeFinding(w, s, lane, Kind::kForeignRow,
                                  "write of " + Bytes(touch.bytes) + " at " + meaning.text +
                                      ", outside the CTA's own rows, which are byte offsets " +
                                      std::to_string(cluster * own) + " to " +
                                      std::to_string((cluster + 1) * own - 1));
    finding.memory = meaning.memory;
    finding.offset = meaning.offset;
    Add(std::move(finding), s, s);
  }
}

void Monitor::Add(Finding finding, const Step& step, const Step& other) {
  const Step* first = std::min(&step, &other);
  const Step* second = std::max(&step, &other);
  auto key = std::make_pair(finding.kind, std::make_pair(first, second));
  auto [place, is_new] = known_.emplace(key, observation_.findings.size());
  if (!is_new) {
    if (place->second < observation_.findings.size()) ++observation_.findings[place->second].count;
  } else if (observation_.findings.size() < kMostFindings) {
    observation_.findings.push_back(std::move(finding));
  }
}

void Monitor::Finish(const Finding& fault) {
  counts_.Report(&observation_);
  if (fault.set()) {
    observation_.findings.push_back(fault);
    observation_.has_fault = true;
    return;
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    const auto& flags = results_[i];
    if (flags.empty() || IsAllSet(flags.data(), flags.size())) continue;
    auto unset = static_cast<uint64_t>(std::count(flags.begin(), flags.end(), 0));
    auto first = std::find(flags.begin(), flags.end(), 0) - flags.begin();
    const Region& region = launch_.tensors[i];
    Finding finding;
    finding.code = Code::kInvalidArgument;
    finding.kind = Kind::kUnwrittenOutput;
    finding.memory = region.name;
    finding.offset = first;
    finding.message = Kernel(launch_) + ": " + std::to_string(unset) + " of the " +
                      Bytes(flags.size()) + " of " + region.name +
                      " were never written; the first is at byte offset " + std::to_string(first);
    observation_.findings.push_back(std::move(finding));
  }
}

}  // namespace jax_ptx::emulator
