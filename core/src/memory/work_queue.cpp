#include "memory/work_queue.h"

#include "hardware/thread_placement.h"
#include "memory/denormals.h"
#include "oom/error.h"
#include "oom/log.h"

namespace oom::memory {

WorkQueue::WorkQueue(std::string name, std::vector<int> cpus) : name_(std::move(name)) {
  thread_ = std::thread([this, cpus = std::move(cpus)] { work(cpus); });
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void WorkQueue::work(const std::vector<int>& cpus) {
  hardware::name_this_thread(name_);
  if (!cpus.empty() && !hardware::pin_this_thread(cpus)) log_debug("memory: queue ", name_, " could not be pinned");
  flush_denormals_on_this_thread();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
      task = nullptr;  // what it owns dies before anyone is told that it is done
      lock.lock();
      if (failure) failure_ = failure;
    }
    ++finished_;
    done_.notify_all();
  }
}

WorkQueue::Ticket WorkQueue::push(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  OOM_CHECK(!stopping_, "queue ", name_, " is being destroyed");
  tasks_.push_back(std::move(task));
  wake_.notify_one();
  return ++pushed_;
}

void WorkQueue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  OOM_CHECK_LE(ticket, pushed_, "queue ", name_);
  done_.wait(lock, [&] { return finished_ >= ticket; });
  if (failure_) std::rethrow_exception(failure_);
}

void WorkQueue::drain() {
  std::unique_lock lock(mutex_);
  const Ticket last = pushed_;
  done_.wait(lock, [&] { return finished_ >= last; });
  if (failure_) std::rethrow_exception(failure_);
}

bool WorkQueue::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

}  // namespace oom::memory
