// Running the emulator's tasks on threads that someone else provides.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace jax_ptx {

// Runs task(0) to task(n - 1) and returns when all are done. `schedule(helper)` should run helper()
// on some other thread, at some time or never: the caller takes tasks as well, so that nothing is
// waited for but tasks in progress, and a pool whose every thread is inside such a call cannot
// deadlock.
template <class Schedule>
void RunShared(int64_t n, const std::function<void(int64_t)>& task, int64_t helpers,
               Schedule schedule) {
  struct Job {
    const std::function<void(int64_t)>& task;  // not touched by a helper that comes too late
    const int64_t n;
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable all_done;

    Job(const std::function<void(int64_t)>& task, int64_t n) : task(task), n(n) {}
    void Work() {
      for (int64_t i; (i = next.fetch_add(1)) < n;) {
        task(i);
        if (done.fetch_add(1) + 1 == n) {
          std::lock_guard lock(mutex);
          all_done.notify_all();
        }
      }
    }
  };
  auto job = std::make_shared<Job>(task, n);
  for (int64_t h = std::min(helpers, n - 1); h > 0; --h) schedule([job] { job->Work(); });
  job->Work();
  std::unique_lock lock(job->mutex);
  job->all_done.wait(lock, [&] { return job->done.load() == job->n; });
}

}  // namespace jax_ptx
