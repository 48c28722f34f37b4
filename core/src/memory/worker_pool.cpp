#include "memory/worker_pool.h"

#include <algorithm>

#include "hardware/thread_placement.h"
#include "memory/denormals.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::memory {

WorkerPool::WorkerPool(std::string name, std::vector<int> cpus) : name_(std::move(name)) {
  OOM_CHECK(!cpus.empty(), "worker pool ", name_, ": no processors");
  start(static_cast<int>(cpus.size()), cpus);
}

WorkerPool::WorkerPool(std::string name, int threads) : name_(std::move(name)) {
  OOM_CHECK_GT(threads, 0, "worker pool ", name_);
  start(threads, {});
}

void WorkerPool::start(int threads, const std::vector<int>& cpus) {
  failures_.resize(threads);
  threads_.reserve(threads);
  for (int worker = 0; worker < threads; ++worker)
    threads_.emplace_back([this, worker, cpu = cpus.empty() ? -1 : cpus[worker]] { work(worker, cpu); });
}

WorkerPool::~WorkerPool() {
  const std::lock_guard callers(callers_);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::work(int worker, int cpu) {
  hardware::name_this_thread(cat(name_, "/", worker));
  if (cpu >= 0 && !hardware::pin_this_thread({cpu})) log_debug("memory: worker ", name_, "/", worker, " could not be pinned to processor ", cpu);
  flush_denormals_on_this_thread();
  const auto workers = static_cast<int64_t>(failures_.size());
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    const auto* body = body_;
    const int64_t begin = count_ * worker / workers;
    const int64_t end = count_ * (worker + 1) / workers;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (begin < end) (*body)(begin, end, worker);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[worker] = std::move(failure);
    if (--running_ == 0) done_.notify_one();
  }
}

void WorkerPool::parallel_for(int64_t count, const std::function<void(int64_t, int64_t, int)>& body) {
  OOM_CHECK(count >= 0, "worker pool ", name_, ": count ", count);
  if (count == 0) return;
  const std::lock_guard callers(callers_);
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    count_ = count;
    body_ = &body;
    running_ = size();
    ++round_;
    wake_.notify_all();
    done_.wait(lock, [&] { return running_ == 0; });
    body_ = nullptr;
    for (std::exception_ptr& each : failures_) {
      if (each && !failure) failure = each;
      each = nullptr;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace oom::memory
