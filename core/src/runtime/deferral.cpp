#include "runtime/deferral.h"

#include <algorithm>
#include <numeric>

namespace oom::runtime {

std::vector<int> deferrable_layers(const Plan& plan, const ModelDescription& model) {
  std::vector<int> streamed, all(model.layers.size());
  std::iota(all.begin(), all.end(), 0);
  for (const int layer : all) {
    if (model.layers[layer].routed() && !std::binary_search(plan.resident_layers.begin(), plan.resident_layers.end(), layer)) streamed.push_back(layer);
  }
  return streamed.empty() ? all : streamed;
}

std::vector<int> waiting_layers(const Plan& plan, const ModelDescription& model) {
  const std::vector<int> layers = deferrable_layers(plan, model);
  const int count = static_cast<int>(layers.size()), waiting = std::min(plan.deferred_layers, count);
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) {
    if ((i + 1) * waiting / count > i * waiting / count) chosen.push_back(layers[i]);
  }
  return chosen;
}

}  // namespace oom::runtime
