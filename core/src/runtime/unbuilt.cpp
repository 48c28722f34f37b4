#include "runtime/unbuilt.h"

#include "base/text.h"
#include "config/faults.h"

namespace oom::runtime {
namespace {

// One setting of which this version cannot do everything that it may say.
struct UnbuiltSetting {
  const char* table;
  const char* key;
  const char* what;
  const char* built;  // what can be given instead
  bool (*asked_for)(const config::Config&);
};

bool names_layers(const LayerChoice& choice) {
  return choice.kind == LayerChoice::Kind::kAll || (choice.kind == LayerChoice::Kind::kCount && choice.count > 0) || (choice.kind == LayerChoice::Kind::kList && !choice.layers.empty());
}

constexpr UnbuiltSetting kUnbuilt[] = {
    {"state", "resident", "expert state on the GPUs", "\"none\" or \"auto\"", [](const config::Config& config) { return names_layers(config.state().resident); }},
    {"state", "resident_ordinary", "ordinary state on the GPUs", "\"none\" or \"auto\"",
     [](const config::Config& config) { return config.state().resident_ordinary == config::OrdinaryResidency::kAll; }},
    {"state", "weights", "making weights from masters at each delivery", "\"cached\" or \"auto\"",
     [](const config::Config& config) { return config.state().weights == config::WeightSupply::kConvert; }},
    {"state", "resident_weights", "keeping working weights beside resident state", "\"convert\" or \"auto\"",
     [](const config::Config& config) { return config.state().resident_weights == config::WeightSupply::kCached; }},
    {"transfer", "gradient_reduction", "summing the ranks' gradients in host memory", "\"gpu\" or \"auto\"",
     [](const config::Config& config) { return config.transfer().gradient_reduction == config::GradientReduction::kHost; }},
    {"engine", "calibration", "planning with a calibration file", "remove the key: analytic costs are used", [](const config::Config& config) { return config.engine().calibration.has_value(); }},
};

}  // namespace

void refuse_unbuilt(const config::Config& config) {
  config::Faults faults;
  for (const UnbuiltSetting& setting : kUnbuilt) {
    if (setting.asked_for(config)) faults.add(config.where(setting.table, setting.key), ": ", setting.what, " is not built yet; cure: ", setting.built);
  }
  faults.raise_if_any();
}

std::map<std::string, std::string> unbuilt_notes() {
  std::map<std::string, std::string> notes;
  for (const UnbuiltSetting& setting : kUnbuilt) notes[cat(setting.table, ".", setting.key)] = cat("Not built yet and refused: ", setting.what, "; cure: ", setting.built, ".");
  return notes;
}

void refuse_unbuilt(const Plan& plan, const std::string& path) {
  std::vector<std::string> faults;
  if (!plan.resident_layers.empty()) faults.push_back("state.resident_layers: expert state on the GPUs is not built yet; cure: []");
  if (plan.resident_ordinary) faults.push_back("state.resident_ordinary: ordinary state on the GPUs is not built yet; cure: false");
  if (!plan.cached_weights) faults.push_back("state.cached_weights: making weights from masters at each delivery is not built yet; cure: true");
  if (plan.resident_cached_weights) faults.push_back("state.resident_cached_weights: keeping working weights beside resident state is not built yet; cure: false");
  if (!plan.retained_feed_forward.empty()) faults.push_back("state.retained_feed_forward: keeping backward tensors of feed-forwards on the GPU is not built yet; cure: []");
  if (!plan.retained_attention.empty()) faults.push_back("state.retained_attention: keeping backward tensors of attention on the GPU is not built yet; cure: []");
  if (!plan.transfer.reduce_on_gpu) faults.push_back("transfer.reduce_on_gpu: summing the ranks' gradients in host memory is not built yet; cure: true");
  if (!faults.empty()) throw FileError(cat(path, ": ", base::join(faults, cat("\n", path, ": "))));
}

}  // namespace oom::runtime
