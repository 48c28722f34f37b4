#include "runtime/failure_deadline.h"

#include <unistd.h>

#include "oom/log.h"

namespace oom::runtime {

FailureDeadline::~FailureDeadline() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FailureDeadline::start(const std::string& message, ExitCode code) {
  const std::lock_guard lock(mutex_);
  if (over_ || thread_.joinable()) return;
  thread_ = std::thread([this, message, code] { wait(message, code); });
}

void FailureDeadline::wait(const std::string& message, ExitCode code) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, grace_, [&] { return over_; })) return;
  log_error(message);
  log_error("the failed run did not end within ", static_cast<double>(grace_.count()) / 1e3, " s (a stage that does not return, a device that does not finish): the process ends without it");
  _exit(static_cast<int>(code));
}

}  // namespace oom::runtime
