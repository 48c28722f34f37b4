#include "step_costs.h"

#include <algorithm>

namespace oom::offload {
namespace {

// Walks a policy as the definition of the model reads; the search prices choice by choice and must come to the same.
class Pricing {
 public:
  Pricing(const StepCosts& costs, const Policy& policy) : costs_(costs), policy_(policy), layers_(costs.count()) {}

  Price run() {
    forward();
    backward();
    int kept = 0;
    for (int layer = 0; layer < layers_; ++layer) {
      if (place(layer) == Boundary::kGpu) price_.gpu_bytes += costs_.input_bytes;
      if (leaves(layer)) price_.host_bytes += costs_.input_bytes;
      if (!keeps(layer)) continue;
      price_.host_bytes += costs_.layers[layer].result_bytes;
      ++kept;
    }
    price_.gpu_bytes += live_bytes_ + std::min<int64_t>(kept, policy_.result_buffers()) * costs_.largest_result_bytes();
    return price_;
  }

 private:
  Boundary place(int layer) const { return place_of(policy_, layer); }
  bool regenerated(int layer) const { return layer >= 0 && layer < layers_ && place(layer) == Boundary::kRegenerate; }
  bool leaves(int layer) const { return place(layer) == Boundary::kHost && !stays(layer, layers_, policy_.buffers); }
  bool keeps(int layer) const { return policy_.layers[layer].keep_attention; }
  const LayerCosts::Passes& passes(int layer) const { return costs_.layers[layer].passes[keeps(layer)]; }
  double weights(int layer) const { return layer < layers_ ? costs_.layers[layer].weights_seconds : 0; }
  double results(int layer) const { return keeps(layer) ? costs_.layers[layer].result_in_seconds : 0; }
  double input(int layer) const { return leaves(layer) ? costs_.input_in_seconds : 0; }
  void lives(int64_t bytes) { live_bytes_ = std::max(live_bytes_, bytes); }

  void forward() {
    double under_way = 0;
    const double buffered = static_cast<double>(policy_.buffers - 1) * costs_.input_out_seconds;
    for (int layer = 0; layer < layers_; ++layer) {
      if (leaves(layer)) under_way += costs_.input_out_seconds;
      const double slot = std::max({passes(layer).forward.seconds, weights(layer + 1), under_way - buffered});
      under_way = std::max(0.0, under_way - slot) + (keeps(layer) ? costs_.layers[layer].result_out_seconds : 0);
      price_.seconds += slot;
      lives(costs_.layers[layer].carried_bytes + passes(layer).forward.bytes);
    }
  }

  int source(int layer) const {
    while (regenerated(layer)) --layer;
    return layer;
  }

  // What the slot above `layer` brings in: for that layer's backward, or for the traversal that comes before it.
  double brought(int layer) const {
    if (layer < 0) return 0;
    const bool begins = regenerated(layer) && !regenerated(layer + 1);
    if (begins) return input(source(layer)) + weights(source(layer)) + results(source(layer));
    const int top = layer + 1;  // a run's last; its traversal leaves the weights of the layer below in their window
    const bool there = regenerated(top) && !regenerated(top + 1) && (policy_.regenerate_cap >= 2 || top - source(top) == 1);
    const bool read = regenerated(layer + 1);  // a source's input comes with the traversal
    return (there ? 0 : weights(layer)) + results(layer) + (read ? 0 : input(layer));
  }

  void backward() {
    lives(costs_.head.bytes);
    price_.seconds += std::max(costs_.head.seconds, brought(layers_ - 1));
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      if (regenerated(layer) && !regenerated(layer + 1)) traverse(source(layer), layer);
      const double leaving = layer + 1 < layers_ ? costs_.layers[layer + 1].gradients_seconds : 0;
      price_.seconds += std::max({passes(layer).backward.seconds, brought(layer - 1), leaving});
      const int64_t held = regenerated(layer) && !policy_.regenerates_in_ring() ? std::min<int64_t>(layer - source(layer), policy_.regenerate_cap) : 0;
      lives(costs_.layers[layer].carried_bytes + passes(layer).backward.bytes + held * costs_.input_bytes);
    }
  }

  void traverse(int from, int top) {
    for (int layer = from; layer < top; ++layer) {
      const int64_t times = (top - layer + policy_.regenerate_cap - 1) / policy_.regenerate_cap;
      price_.seconds += static_cast<double>(times) * std::max(passes(layer).traverse.seconds, weights(layer + 1) + results(layer + 1));
      const int64_t inputs = policy_.regenerates_in_ring() ? 0 : std::min<int64_t>(layer - from + 1, std::max<int64_t>(policy_.regenerate_cap, 2));
      lives(costs_.layers[top].carried_bytes + passes(layer).traverse.bytes + inputs * costs_.input_bytes);
    }
  }

  const StepCosts& costs_;
  const Policy& policy_;
  const int layers_;
  int64_t live_bytes_ = 0;
  Price price_;
};

}  // namespace

int64_t StepCosts::largest_result_bytes() const {
  int64_t largest = 0;
  for (const LayerCosts& layer : layers) largest = std::max(largest, layer.result_bytes);
  return largest;
}

double StepCosts::least_seconds() const {
  double seconds = head.seconds;
  for (int layer = 0; layer < count(); ++layer) {
    const bool may_keep = layers[layer].result_bytes > 0;
    const auto least = [&](Work LayerCosts::Passes::*pass) {
      const double discarded = (layers[layer].passes[0].*pass).seconds;
      return may_keep ? std::min(discarded, (layers[layer].passes[1].*pass).seconds) : discarded;
    };
    const double above = layer + 1 < count() ? layers[layer + 1].weights_seconds : 0, leaving = layer + 1 < count() ? layers[layer + 1].gradients_seconds : 0;
    seconds += std::max(least(&LayerCosts::Passes::forward), above);
    seconds += std::max({least(&LayerCosts::Passes::backward), layer > 0 ? layers[layer - 1].weights_seconds : 0, leaving});
  }
  return seconds;
}

Boundary place_of(const Policy& policy, int layer) {
  const Boundary place = policy.layers[layer].boundary;
  return place == Boundary::kRegenerate && (layer == 0 || stays(layer, static_cast<int>(policy.layers.size()), policy.buffers)) ? Boundary::kHost : place;
}

Price price(const StepCosts& costs, const Policy& policy) { return Pricing(costs, policy).run(); }

}  // namespace oom::offload
