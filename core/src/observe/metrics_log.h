/// metrics.jsonl: one JSON object a step, appended and flushed, so that a killed run keeps every line it wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/file.h"

namespace oom::observe {

/// Of an evaluation after a step's update.
struct EvaluationMetrics {
  double loss = 0;     ///< mean cross entropy of the held-out samples
  int64_t tokens = 0;  ///< targets that count
  double seconds = 0;
};

struct StepMetrics {
  int64_t step = 0;             ///< from 1
  double loss = 0;              ///< mean cross entropy before the step's update, without the auxiliary loss
  double aux_loss = 0;          ///< before its coefficient
  double learning_rate = 0;
  double grad_norm = 0;         ///< of the whole model, before clipping
  int64_t tokens = 0;           ///< of all ranks
  double step_seconds = 0;
  std::vector<int64_t> gpu_peak_bytes;
  int64_t host_bytes = 0;       ///< proportional set size of the process
  std::optional<EvaluationMetrics> evaluation;  ///< written as eval_loss, eval_tokens and eval_seconds; no part of step_seconds
};

class MetricsLog {
 public:
  /// Opens `path`; lines of steps after `keep_until` are dropped, so that a resumed run does not tell a step twice.
  MetricsLog(const std::filesystem::path& path, int64_t keep_until);
  void append(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
};

}  // namespace oom::observe
