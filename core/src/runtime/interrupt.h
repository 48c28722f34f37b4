/// SIGINT and SIGTERM of a training run. Once steps are under way, the first asks the run to finish its step, write a checkpoint and stop, and
/// the second stops at once. Before, nothing has been trained that could be lost, and the first stops at once. The exit status is 130 each time.
#pragma once

namespace oom::runtime {

/// Takes over both signals, for the rest of the process; one in a process, made before files are opened and memory is taken.
class InterruptGuard {
 public:
  InterruptGuard();
  /// The run is over: a signal stops what is left of the process at once.
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// From here on the first signal is a request.
  static void training_begins();
  /// True once it came.
  static bool requested();
};

}  // namespace oom::runtime
