/// How far each lane has come, and whether the run has failed: what the threads of an executor tell each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oom/error.h"

namespace oom::program {

/// Thrown by waits when the run has failed or ends; the threads of an executor leave on it.
struct Stopped {};

/// Thread-safe. Counts are of stages since the executor began; in a lane, stages start and complete in order.
class Progress {
 public:
  using OnFailure = std::function<void(const std::string& message, ExitCode code)>;
  Progress(int lanes, OnFailure on_failure);

  void add_started(int lane);
  void add_completed(int lane);
  /// Raises the completed count to `count`, if it is lower.
  void complete_up_to(int lane, int64_t count);
  int64_t started(int lane) const;
  int64_t completed(int lane) const;
  /// Return when the lane has started or completed `count` stages. Throw Stopped when the run stops first.
  void wait_started(int lane, int64_t count);
  void wait_completed(int lane, int64_t count);

  /// The first failure of a run stays; all waits end. Calls on_failure once.
  void fail(const std::string& message, ExitCode code);
  /// Ends all waits without a failure.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  const std::atomic<bool>& stop_flag() const { return stopped_; }
  /// Throws the failure as the error type of its exit code, if there is one.
  void raise_failure() const;

 private:
  struct Lane {
    mutable std::mutex mutex;
    std::condition_variable changed;
    int64_t started = 0;
    int64_t completed = 0;
  };
  struct Failure {
    std::string message;
    ExitCode code;
  };
  std::vector<std::unique_ptr<Lane>> lanes_;
  OnFailure on_failure_;
  std::atomic<bool> stopped_{false};
  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
};

}  // namespace oom::program
