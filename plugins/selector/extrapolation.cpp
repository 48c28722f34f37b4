#include "extrapolation.h"

#include <algorithm>
#include <cmath>

namespace oom::selector {
namespace {

struct Line {
  double fixed = 0, all = 0;
};

// `value` of a whole model, out of short runs.
template <typename Value>
Line extended(const Sample& one, const Sample& two, const std::vector<Sample>& more, const LayerMix& whole, int layers, const Value& value) {
  const double per_layer = std::max(0.0, value(two) - value(one)) / (two.layers - one.layers);
  const double fixed = std::max(0.0, value(one) - per_layer * one.layers);
  double all = fixed + per_layer * layers;
  for (const Sample& other : more) {
    for (int LayerMix::*kind : kLayerKinds) {
      const int difference = other.mix.*kind - two.mix.*kind;
      if (difference == 0) continue;
      const double counted = static_cast<double>(two.mix.*kind) * layers / two.layers;
      all += (whole.*kind - counted) * (value(other) - value(two)) / difference;
    }
  }
  return {fixed, std::max(all, fixed)};
}

}  // namespace

LayerMix mix_of(const Plan& plan) {
  return {.resident = static_cast<int>(plan.resident_layers.size()),
          .retained_feed_forward = static_cast<int>(plan.retained_feed_forward.size()),
          .retained_attention = static_cast<int>(plan.retained_attention.size()),
          .deferred = plan.deferred_layers};
}

Samples samples(const LayerMix& whole, int unit_layers, int layers) {
  Samples made;
  // How the updates of a few layers more meet the rest of a step has no cost of its own: their share is as near as can be.
  made.one.deferred = static_cast<int>(std::lround(static_cast<double>(whole.deferred) * unit_layers / layers));
  for (int LayerMix::*kind : kLayerKinds) made.one.*kind = whole.*kind * unit_layers / layers;
  made.two.deferred = 2 * made.one.deferred;
  for (int LayerMix::*kind : kLayerKinds) made.two.*kind = 2 * made.one.*kind;
  for (int LayerMix::*kind : kLayerKinds) {
    if (made.one.*kind * layers == whole.*kind * unit_layers) continue;
    made.more.push_back(made.two);
    made.more.back().*kind = (2 * whole.*kind * unit_layers + layers - 1) / layers;
  }
  return made;
}

Extrapolation extrapolate(const Sample& one, const std::optional<Sample>& two, const std::vector<Sample>& more, const LayerMix& whole, int layers) {
  Extrapolation found;
  found.gpu_peak_bytes = one.result.gpu_peak_bytes;
  found.step_seconds = one.result.step_seconds;
  if (two) {
    const Line seconds = extended(one, *two, more, whole, layers, [](const Sample& sample) { return sample.result.step_seconds; });
    found.fixed_seconds = seconds.fixed;
    found.step_seconds = seconds.all;
    for (size_t rank = 0; rank < found.gpu_peak_bytes.size(); ++rank) {
      const Line bytes = extended(one, *two, more, whole, layers, [&](const Sample& sample) { return static_cast<double>(sample.result.gpu_peak_bytes.at(rank)); });
      found.gpu_peak_bytes[rank] = std::llround(bytes.all);
    }
  }
  found.seconds_per_layer = (found.step_seconds - found.fixed_seconds) / layers;
  return found;
}

}  // namespace oom::selector
