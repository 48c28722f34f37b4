/// Ends the process when a failed run does not come to its end: an action that never returns, a kernel that never finishes, would
/// otherwise keep the threads of its executor from being joined, and the message of the failure from being told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "oom/error.h"

namespace oom::runtime {

class FailureDeadline {
 public:
  explicit FailureDeadline(std::chrono::milliseconds grace) : grace_(grace) {}
  /// The run has ended in time: nothing happens any more.
  ~FailureDeadline();

  /// Begins to count, once; from any thread. When this object is still there after the grace, the process logs `message` and exits with `code`,
  /// running no destructors: what they would wait for never comes. Checkpoints are renamed into place when complete, so nothing is damaged.
  void start(const std::string& message, ExitCode code);

 private:
  void wait(const std::string& message, ExitCode code);

  std::chrono::milliseconds grace_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace oom::runtime
