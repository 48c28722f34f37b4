/// metrics.jsonl: one JSON object a step.
#pragma once

#include <optional>
#include <vector>

#include "observe/json_lines.h"

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
  double time = 0;              ///< when the step ended, in seconds since 1970
  std::optional<EvaluationMetrics> evaluation;  ///< written as eval_loss, eval_tokens and eval_seconds; no part of step_seconds
};

nlohmann::ordered_json to_json(const StepMetrics& metrics);
/// Seconds since 1970, now.
double unix_seconds();

}  // namespace oom::observe
