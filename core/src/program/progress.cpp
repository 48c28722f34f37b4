#include "program/progress.h"

#include <algorithm>

namespace oom::program {

Progress::Progress(int lanes, OnFailure on_failure) : on_failure_(std::move(on_failure)) {
  for (int i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
}

void Progress::add_started(int lane) {
  Lane& it = *lanes_[lane];
  {
    const std::lock_guard lock(it.mutex);
    ++it.started;
  }
  it.changed.notify_all();
}

void Progress::add_completed(int lane) {
  Lane& it = *lanes_[lane];
  {
    const std::lock_guard lock(it.mutex);
    ++it.completed;
  }
  it.changed.notify_all();
}

void Progress::complete_up_to(int lane, int64_t count) {
  Lane& it = *lanes_[lane];
  {
    const std::lock_guard lock(it.mutex);
    it.completed = std::max(it.completed, count);
  }
  it.changed.notify_all();
}

int64_t Progress::started(int lane) const {
  const std::lock_guard lock(lanes_[lane]->mutex);
  return lanes_[lane]->started;
}

int64_t Progress::completed(int lane) const {
  const std::lock_guard lock(lanes_[lane]->mutex);
  return lanes_[lane]->completed;
}

void Progress::wait_started(int lane, int64_t count) {
  Lane& it = *lanes_[lane];
  std::unique_lock lock(it.mutex);
  it.changed.wait(lock, [&] { return it.started >= count || stopped(); });
  if (stopped()) throw Stopped{};
}

void Progress::wait_completed(int lane, int64_t count) {
  Lane& it = *lanes_[lane];
  std::unique_lock lock(it.mutex);
  it.changed.wait(lock, [&] { return it.completed >= count || stopped(); });
  if (stopped()) throw Stopped{};
}

void Progress::fail(const std::string& message, ExitCode code) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (stopped()) return;  // what fails afterwards fails because of the first
    failure_ = Failure{message, code};
    stopped_.store(true, std::memory_order_release);
  }
  stop();
  if (on_failure_) on_failure_(message, code);
}

void Progress::stop() {
  stopped_.store(true, std::memory_order_release);
  for (auto& lane : lanes_) {
    // Taking the lock keeps the notification from falling between a waiter's look at the flag and its sleep.
    { const std::lock_guard lock(lane->mutex); }
    lane->changed.notify_all();
  }
}

void Progress::raise_failure() const {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_) return;
  switch (failure_->code) {
    case ExitCode::kUsage: throw ConfigError(failure_->message);
    case ExitCode::kBudget: throw BudgetError(failure_->message);
    case ExitCode::kFile: throw FileError(failure_->message);
    case ExitCode::kDevice: throw DeviceError(failure_->message);
    case ExitCode::kDiverged: throw DivergedError(failure_->message);
    default: throw Error(failure_->message, failure_->code);
  }
}

}  // namespace oom::program
