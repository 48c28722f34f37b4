/// The lines of metrics.jsonl as columns for charts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace oom::observe {

/// Charts show no more points than this; longer runs are drawn as means of equal stretches of steps.
inline constexpr size_t kMostPoints = 2000;

struct MetricColumns {
  /// {"step": [...], "loss": [...], "gpu_peak_bytes/0": [...]}: ascending steps, null where a step does not tell a number. Of a step that is told twice
  /// the later line counts.
  nlohmann::ordered_json values;
  /// Least and greatest of each stretch, by the same names; empty when every step is a point of its own.
  nlohmann::ordered_json low, high;
  int64_t last_step = 0;            ///< 0: no step
  std::vector<int64_t> nameless;    ///< positions of lines that have no step
};
/// Columns of every number in `lines` but "time" and those of evaluations.
MetricColumns metric_columns(const std::vector<nlohmann::json>& lines);
/// {"step": [...], "loss": [...]} of the lines that hold an "eval_loss"; null when none does.
nlohmann::ordered_json evaluation_columns(const std::vector<nlohmann::json>& lines);

}  // namespace oom::observe
