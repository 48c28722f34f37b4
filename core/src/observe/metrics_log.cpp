#include "observe/metrics_log.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "oom/error.h"

namespace oom::observe {

MetricsLog::MetricsLog(const std::filesystem::path& path, int64_t keep_until) : path_(path) {
  std::vector<std::string> kept;
  {
    std::ifstream old(path_);
    for (std::string line; std::getline(old, line);) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("step") && json["step"].is_number_integer() && json["step"].get<int64_t>() <= keep_until) kept.push_back(line);
    }
  }
  std::ofstream out(path_, std::ios::trunc);
  for (const std::string& line : kept) out << line << '\n';
  out.flush();
  if (!out) throw FileError(cat(path_.string(), ": cannot be written; check the folder's permissions and the disk's free space"));
}

void MetricsLog::append(const StepMetrics& metrics) {
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
  if (metrics.evaluation) {
    json["eval_loss"] = metrics.evaluation->loss;
    json["eval_tokens"] = metrics.evaluation->tokens;
    json["eval_seconds"] = metrics.evaluation->seconds;
  }
  std::ofstream out(path_, std::ios::app);
  out << json.dump() << '\n';
  out.flush();
  if (!out) throw FileError(cat(path_.string(), ": step ", metrics.step, " could not be appended; check the disk's free space"));
}

}  // namespace oom::observe
