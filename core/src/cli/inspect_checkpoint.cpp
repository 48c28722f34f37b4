#include <nlohmann/json.hpp>

#include "base/text.h"
#include "checkpoint/best_checkpoints.h"
#include "checkpoint/checkpoint_reader.h"
#include "cli/inspection.h"
#include "oom/error.h"

namespace oom::cli {
namespace {

constexpr int kThreads = 4;

// The tables that say what was trained and how; the rest of the configuration is in the run folder.
std::string excerpt(const std::string& config) {
  std::string text, line;
  bool wanted = false;
  for (size_t begin = 0; begin < config.size();) {
    size_t end = config.find('\n', begin);
    if (end == std::string::npos) end = config.size();
    line = config.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("[")) wanted = line == "[model]" || line == "[data]" || line == "[train]" || line == "[precision]" || line == "[engine]";
    if (wanted && !line.empty()) text += cat("  ", line, "\n");
  }
  return text;
}

}  // namespace

Inspection inspect_checkpoint(const std::filesystem::path& folder) {
  const checkpoint::CheckpointReader reader(folder);
  const checkpoint::TrainingState& state = reader.state();
  int64_t parameters = 0;
  for (const checkpoint::TensorInfo& tensor : reader.tensors()) parameters += tensor.elements();
  Inspection found;
  found.json = {{"kind", "checkpoint"}, {"path", folder.string()}, {"step", state.step}, {"samples", state.samples}, {"tensors", reader.tensors().size()},
                {"parameters", parameters}, {"bytes", reader.bytes()}, {"versions", state.versions}, {"config", state.config}};
  found.text = cat("checkpoint  ", folder.string(), "\nstep        ", state.step, ", ", grouped(state.samples), " samples consumed\n", "tensors     ",
                   grouped(static_cast<int64_t>(reader.tensors().size())), ", ", grouped(parameters), " parameters, each with master and two moments\n", "bytes       ",
                   grouped(reader.bytes()), " (", base::format_bytes(reader.bytes()), ")\n");
  if (reader.has_text(checkpoint::kEvaluationName)) {
    const nlohmann::json evaluation = nlohmann::json::parse(reader.text(checkpoint::kEvaluationName), nullptr, /*allow_exceptions=*/false);
    found.json["evaluation"] = evaluation;
    found.text += cat("evaluation  ", evaluation.dump(), "\n");
  }
  for (const auto& [name, version] : state.versions) found.text += cat("written by  ", name, " ", version, "\n");
  found.text += cat("config\n", excerpt(state.config));
  try {
    reader.verify(kThreads);
    found.json["verified"] = true;
    found.text += "verified    every byte has its checksum\n";
  } catch (const FileError& error) {
    found.json["verified"] = false;
    found.json["fault"] = found.fault = error.what();
  }
  return found;
}

}  // namespace oom::cli
