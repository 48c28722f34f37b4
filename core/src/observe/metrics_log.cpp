#include "observe/metrics_log.h"

#include <chrono>

namespace oom::observe {

nlohmann::ordered_json to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json json;
  json["step"] = metrics.step;
  json["loss"] = metrics.loss;
  json["aux_loss"] = metrics.aux_loss;
  json["learning_rate"] = metrics.learning_rate;
  json["grad_norm"] = metrics.grad_norm;
  json["tokens"] = metrics.tokens;
  json["step_seconds"] = metrics.step_seconds;
  json["gpu_peak_bytes"] = metrics.gpu_peak_bytes;
  json["host_bytes"] = metrics.host_bytes;
  json["time"] = metrics.time;
  if (metrics.evaluation) {
    json["eval_loss"] = metrics.evaluation->loss;
    json["eval_tokens"] = metrics.evaluation->tokens;
    json["eval_seconds"] = metrics.evaluation->seconds;
  }
  return json;
}

double unix_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace oom::observe
