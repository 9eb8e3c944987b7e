// What the race check says.
#include "emulator/compile.h"
#include "emulator/monitor.h"
#include "emulator/race.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {

using ptx::Op;

void Race::Report(const Attempt& attempt, const Record& record, uint32_t lane_of_other,
                  bool was_write, int lane, uint32_t offset) {
  const Touch& touch = attempt.touch;
  const Warp& w = attempt.warp;
  const Step& other_step = launch_.program->steps[record.step];
  uint32_t other_thread = record.thread + (record.is_copy ? 0 : lane_of_other);
  Dim3 other_cta = CtaId(launch_, record.first.cluster, order_.RankOf(other_thread));
  Site other = SiteOf(launch_, other_step, other_cta, order_.ThreadOf(other_thread));
  Meaning meaning = MeaningOf(w, touch.space, touch.address[lane] + offset);
  auto verb = [](const ptx::Instruction& i, bool is_write, bool is_copy, bool is_atomic) {
    bool is_mbarrier = i.op == Op::kMbarrier || i.op == Op::kMbarrierArrive ||
                       i.op == Op::kMbarrierWait || i.op == Op::kCpAsyncMbarrier;
    return std::string(is_mbarrier ? "mbarrier operation on"
                       : is_copy   ? (is_write ? "copy into" : "copy from")
                       : is_atomic ? "atomic update of"
                       : is_write  ? "write of"
                                   : "read of");
  };
  // A relaxed arrival is recorded as a copy is.
  bool is_copy = attempt.is_copy && attempt.step.source->op != Op::kMbarrierArrive;
  bool was_copy = record.is_copy && other_step.source->op != Op::kMbarrierArrive;
  bool was_atomic = other_step.source->op == Op::kAtom || other_step.source->op == Op::kRed;
  bool is_same_warp = record.first.cluster == cluster_ && other_cta == w.cta->id &&
                      order_.ThreadOf(other_thread) / kLanes == w.index;
  Epoch before = record.first;
  before.slot += lane_of_other;
  bool lacks_fence = before.cluster != cluster_ && order_.HasSeen(before, order_.SlotOf(w, lane));
  // Strong accesses race where a scope leaves the other thread out.
  bool is_narrow = record.scope != 0 && attempt.scope != 0 && !was_copy && !is_copy;
  std::string mend =
      is_narrow ? "both are atomic or strong, but a scope of .cta (or .cluster) leaves the other "
                  "thread out: a scope that holds both, such as .gpu, would do"
      : was_copy && order_.IsBefore(record.first, record.thread)
          ? "the thread that copied has waited for the copy, but nothing tells this one: a barrier "
            "such as bar.sync behind the wait would"
      : was_copy ? "the copy has not been waited for"
      : is_copy  ? "nothing orders the copy behind that access; if it is to come first, a barrier "
                   "such as bar.sync is "
                   "missing behind the wait for it"
      : is_same_warp                     ? "bar.warp.sync would order the threads of a warp"
      : other_cta == w.cta->id           ? "a barrier such as bar.sync would order them"
      : record.first.cluster == cluster_ ? "barrier.cluster would order them"
      : lacks_fence ? "a relaxed or volatile access or atomic of this CTA saw what the other "
                      "one released behind that; a fence behind it, such as __threadfence(), "
                      "would order them"
                    : "between CTAs only atomics and fences order accesses: a release or fence "
                      "behind that one, and an acquire or fence in front of this one";
  Finding finding = MakeFinding(
      w, attempt.step, lane, Kind::kRace,
      "data race: " +
          verb(*attempt.step.source, attempt.is_write, is_copy, touch.access == Access::kAtomic) +
          " " + meaning.text + "\n  and " +
          verb(*other_step.source, was_write, was_copy, was_atomic) + " it at " + Text(other) +
          ", with nothing that orders the two; " + mend);
  finding.memory = meaning.memory;
  finding.offset = meaning.offset;
  finding.other = other;
  monitor_.Add(std::move(finding), attempt.step, other_step);
}

void Race::Exit(const Cta& cta) {
  order_.EndCta(cta.rank);
  const Cells& cells = shared_[cta.rank];
  for (uint64_t i = 0; i < cells.count; ++i) {
    for (Handle handle : {cells.cells[i].write, cells.cells[i].read}) {
      for (const Entry& entry : EntriesOf(handle)) {
        const Record& record = records_[entry.record];
        auto lane = static_cast<uint32_t>(__builtin_ctz(entry.lanes));
        uint32_t thread = record.thread + (record.is_copy ? 0 : lane);
        Epoch epoch = record.first;
        epoch.slot += lane;
        if (order_.RankOf(thread) == cta.rank || order_.IsBeforeEnd(epoch)) continue;
        const Step& step = launch_.program->steps[record.step];
        Finding finding;
        finding.code = Code::kInvalidArgument;
        finding.kind = Kind::kExitedPeer;
        finding.site = SiteOf(launch_, step, CtaId(launch_, cluster_, order_.RankOf(thread)),
                              order_.ThreadOf(thread));
        finding.message = Kernel(launch_) + ", " + Text(finding.site) +
                          ": access to the shared memory of CTA " + std::to_string(cta.rank) +
                          " of the cluster, which nothing keeps from exiting before; a "
                          "barrier.cluster at its end would";
        finding.memory = "shared memory";
        finding.offset = static_cast<int64_t>(i << shared_shift_);
        monitor_.Add(std::move(finding), step, step);
      }
    }
  }
}

}  // namespace jax_ptx::emulator
