#include <iostream>

#include "checkpoint/checkpoint_reader.h"
#include "cli/command_line.h"
#include "runtime/model_files.h"
#include "runtime/session.h"

namespace oom::cli {
namespace {

namespace fs = std::filesystem;

// The folder that the model came from, for tensors that are carried through; null when it is gone or without weights.
std::unique_ptr<checkpoint::HfDirectory> original_files(const checkpoint::CheckpointReader& from) {
  if (!from.has_text("source_model.txt")) return nullptr;
  const fs::path folder = from.text("source_model.txt");
  std::error_code error;
  bool weights = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) weights = weights || entry.path().extension() == ".safetensors";
  return weights ? std::make_unique<checkpoint::HfDirectory>(folder) : nullptr;
}

}  // namespace

int run_export(const CommandLine& line) {
  const std::optional<std::string> out = line.option("out");
  if (!out) throw ConfigError("oom export: --out DIR is missing; name the directory to make");
  const std::string dtype = line.option("dtype").value_or("bf16");
  if (dtype != "bf16" && dtype != "fp32") throw ConfigError(cat("oom export: --dtype: must be bf16 or fp32; got ", dtype));
  const checkpoint::CheckpointReader from(line.path);
  runtime::PluginHost plugins({});
  const runtime::LoadedModel model = plugins.load_model(from.text("config.json"), line.path + "/config.json", {}, /*with_operators=*/false);
  const std::unique_ptr<checkpoint::HfDirectory> original = original_files(from);
  checkpoint::SourceTensors came_in;
  if (from.has_text(checkpoint::kSourceTensorsName)) came_in = checkpoint::SourceTensors::parse(from.text(checkpoint::kSourceTensorsName), from.folder() / checkpoint::kSourceTensorsName);
  runtime::write_hf_model(
      *out, model.description,
      [&](int parameter, int64_t first, std::span<float> values) { from.read(model.description.parameters[parameter].name, checkpoint::StateStream::kMaster, first, values); },
      dtype == "fp32" ? checkpoint::Dtype::kF32 : checkpoint::Dtype::kBF16, came_in, original.get());
  std::cout << *out << "\n";
  return 0;
}

}  // namespace oom::cli
