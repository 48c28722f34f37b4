#include "runtime/unbuilt.h"

#include "base/text.h"
#include "config/faults.h"

namespace oom::runtime {

void refuse_unbuilt(const config::Config& config) {
  config::Faults faults;
  const auto refuse = [&](const char* table, const char* key, const char* what, const char* built) {
    faults.add(config.where(table, key), ": ", what, " is not built yet; cure: ", built);
  };
  const LayerChoice& resident = config.state().resident;
  const bool some_resident = resident.kind == LayerChoice::Kind::kAll || (resident.kind == LayerChoice::Kind::kCount && resident.count > 0) ||
                             (resident.kind == LayerChoice::Kind::kList && !resident.layers.empty());
  if (some_resident) refuse("state", "resident", "expert state on the GPUs", "\"none\" or \"auto\"");
  if (config.state().resident_ordinary == config::OrdinaryResidency::kAll) refuse("state", "resident_ordinary", "ordinary state on the GPUs", "\"none\" or \"auto\"");
  if (config.state().weights == config::WeightSupply::kConvert) refuse("state", "weights", "making weights from masters at each delivery", "\"cached\" or \"auto\"");
  if (config.state().resident_weights == config::WeightSupply::kCached) refuse("state", "resident_weights", "keeping working weights beside resident state", "\"convert\" or \"auto\"");
  if (config.transfer().gradient_reduction == config::GradientReduction::kHost) {
    refuse("transfer", "gradient_reduction", "summing the ranks' gradients in host memory", "\"gpu\" or \"auto\"");
  }
  faults.raise_if_any();
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
