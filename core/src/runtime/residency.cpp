#include "runtime/residency.h"

#include <algorithm>

namespace oom::runtime {

std::vector<int> place_resident(int count, int layers, config::Placement placement) {
  OOM_CHECK(count >= 0 && count <= layers, count, " resident of ", layers, " layers");
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) {
    const bool spread = placement == config::Placement::kInterleaved && i >= 2;
    // In integers: the half makes both halves of the fraction even numbers.
    chosen.push_back(spread ? 2 + (layers - 2) * (2 * (i - 2) + 1) / (2 * (count - 2)) : i);
  }
  return chosen;
}

std::vector<int> routed_layers(const ModelDescription& model) {
  std::vector<int> routed;
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    if (model.layers[layer].routed()) routed.push_back(static_cast<int>(layer));
  }
  return routed;
}

bool chooses_retained(const Plan& plan) {
  const auto table = plan.settings.find(plan.experts);
  return table != plan.settings.end() && table->second.contains("retain");
}

std::optional<std::vector<int>> stated_residency(const config::Config& config, const ModelDescription& model) {
  const LayerChoice& choice = config.state().resident;
  const std::vector<int> routed = routed_layers(model);
  const auto where = [&] { return config.where("state", "resident"); };
  switch (choice.kind) {
    case LayerChoice::Kind::kAuto: return std::nullopt;
    case LayerChoice::Kind::kNone: return std::vector<int>{};
    case LayerChoice::Kind::kAll: return routed;
    case LayerChoice::Kind::kCount: {
      if (choice.count > static_cast<int64_t>(routed.size())) {
        throw ConfigError(cat(where(), ": must be at most the number of layers with routed experts, ", routed.size(), "; got ", choice.count, "; cure: \"all\", or ", routed.size()));
      }
      std::vector<int> layers;
      for (const int position : place_resident(static_cast<int>(choice.count), static_cast<int>(routed.size()), config.state().placement)) layers.push_back(routed[position]);
      return layers;
    }
    case LayerChoice::Kind::kList: break;
  }
  std::vector<int> layers;
  for (const int64_t layer : choice.layers) {
    if (!std::binary_search(routed.begin(), routed.end(), layer)) {
      throw ConfigError(cat(where(), ": layer ", layer, layer < static_cast<int64_t>(model.layers.size()) ? " has no routed experts" : cat(" is not there: the model has ", model.layers.size(), " layers, counted from 0")));
    }
    layers.push_back(static_cast<int>(layer));
  }
  return layers;
}

}  // namespace oom::runtime
