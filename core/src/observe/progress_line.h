/// The progress of a run on stderr: one line that rewrites itself on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "observe/metrics_log.h"

namespace oom::observe {

class ProgressLine {
 public:
  ProgressLine(int64_t first_step, int64_t last_step);
  ~ProgressLine();
  /// Shows a step and the latest evaluation; off a terminal at most one line every few seconds, the first step, the last and evaluated ones always.
  void show(const StepMetrics& metrics);
  /// Ends the line, so that a log line can follow.
  void end();

 private:
  int64_t first_step_, last_step_;
  bool terminal_;
  bool open_ = false;
  double smooth_seconds_ = 0;
  std::string evaluated_;  // the latest evaluation, as shown
  std::chrono::steady_clock::time_point last_shown_;
};

}  // namespace oom::observe
