#include "runtime/run_checkpoint.h"

#include <algorithm>
#include <unordered_map>

#include "checkpoint/best_checkpoints.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/tensor_files.h"
#include "oom/version.h"

namespace oom::runtime {
namespace {

constexpr int64_t kPieceElements = 1 << 20;
constexpr int kThreads = 4;

optim::StatePart part_of(checkpoint::StateStream stream) {
  switch (stream) {
    case checkpoint::StateStream::kMaster: return optim::StatePart::kMaster;
    case checkpoint::StateStream::kFirstMoment: return optim::StatePart::kFirstMoment;
    case checkpoint::StateStream::kSecondMoment: return optim::StatePart::kSecondMoment;
  }
  return optim::StatePart::kMaster;
}

std::vector<checkpoint::TensorInfo> tensors_of(const ModelDescription& model) {
  std::vector<checkpoint::TensorInfo> tensors;
  for (const ParameterSpec& parameter : model.parameters) tensors.push_back({parameter.name, checkpoint::Dtype::kF32, parameter.shape});
  return tensors;
}

void check_tensors(const checkpoint::CheckpointReader& from, const ModelDescription& model) {
  std::string faults;
  for (const ParameterSpec& parameter : model.parameters) {
    const checkpoint::TensorInfo* tensor = from.find(parameter.name);
    if (!tensor) {
      faults += cat("\n  missing: ", parameter.name);
    } else if (tensor->shape != parameter.shape) {
      faults += cat("\n  misshapen: ", parameter.name, " is ", checkpoint::shape_text(tensor->shape), ", the model makes it ", checkpoint::shape_text(parameter.shape));
    }
  }
  for (const checkpoint::TensorInfo& tensor : from.tensors()) {
    const bool known = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const ParameterSpec& parameter) { return parameter.name == tensor.name; });
    if (!known) faults += cat("\n  unknown: ", tensor.name);
  }
  if (!faults.empty()) throw FileError(cat(from.folder().string(), ": the checkpoint is of another model than model.path:", faults));
}

}  // namespace

std::unique_ptr<checkpoint::CheckpointReader> open_newest_checkpoint(const std::filesystem::path& checkpoints) {
  checkpoint::NewestCheckpoint newest = checkpoint::newest_complete(checkpoints);
  for (const checkpoint::SkippedCheckpoint& skipped : newest.skipped) log_warn("resume: skipped ", skipped.path.string(), ": ", skipped.why);
  return std::move(newest.reader);
}

void restore_checkpoint(const checkpoint::CheckpointReader& from, const ModelDescription& model, Engine& engine) {
  check_tensors(from, model);
  engine.clear_state();
  checkpoint::for_each_parallel(model.parameters.size(), kThreads, [&](size_t p) {
    const ParameterSpec& parameter = model.parameters[p];
    const int64_t total = parameter.elements();
    std::vector<float> values(static_cast<size_t>(std::min(total, kPieceElements)));
    for (const checkpoint::StateStream stream : checkpoint::kStateStreams) {
      for (int64_t at = 0; at < total; at += kPieceElements) {
        const std::span<float> part(values.data(), static_cast<size_t>(std::min(kPieceElements, total - at)));
        from.read(parameter.name, stream, at, part);
        engine.state().write(static_cast<int>(p), part_of(stream), at, part);
      }
    }
  });
  engine.publish_weights();
}

std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Session& session, Engine& engine, int64_t step, int64_t samples, const CheckpointTexts& texts) {
  const ModelDescription& model = session.model().description;
  std::unordered_map<std::string, int> index;
  for (size_t p = 0; p < model.parameters.size(); ++p) index[model.parameters[p].name] = static_cast<int>(p);
  checkpoint::CheckpointWriter writer(checkpoints, step, tensors_of(model), {.threads = kThreads});
  writer.write_tensors([&](const checkpoint::TensorInfo& tensor, checkpoint::StateStream stream, const checkpoint::FloatSink& sink) {
    const int64_t total = tensor.elements();
    std::vector<float> values(static_cast<size_t>(std::min(total, kPieceElements)));
    for (int64_t at = 0; at < total; at += kPieceElements) {
      const std::span<float> part(values.data(), static_cast<size_t>(std::min(kPieceElements, total - at)));
      engine.state().read(index.at(tensor.name), part_of(stream), at, part);
      sink(part);
    }
  });
  writer.write_text("config.json", model.config_json);
  writer.write_text("source_model.txt", std::filesystem::absolute(session.config().model().path).string());
  for (const auto& [name, text] : texts) writer.write_text(name, text);
  checkpoint::TrainingState state;
  state.step = step;
  state.samples = samples;
  state.versions = {{"oom", OOM_SDK_VERSION}};
  state.random = {{"weights_seed", std::to_string(session.config().model().seed)}};
  state.config = config::resolved_toml(session.config());
  const std::filesystem::path written = writer.commit(state);
  const config::Checkpoint& kept = session.config().checkpoint();
  const std::vector<std::string> best = checkpoint::best_checkpoints(checkpoints, kept.keep_best);
  checkpoint::mark_best(checkpoints, best.empty() ? "" : best.front());
  checkpoint::prune(checkpoints, kept.keep, best);
  return written;
}

}  // namespace oom::runtime
