/// SIGINT and SIGTERM: the first asks the run to finish its step, write a checkpoint and stop; the second stops at once.
#pragma once

namespace oom::runtime {

/// Takes over both signals until destroyed. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  /// True from the first signal on.
  static bool requested();
};

}  // namespace oom::runtime
