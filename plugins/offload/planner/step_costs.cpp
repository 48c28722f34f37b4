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
    for (int layer = 0; layer < layers_; ++layer) {
      if (place(layer) == Boundary::kGpu) price_.gpu_bytes += costs_.input_bytes;
      if (leaves(layer)) price_.host_bytes += costs_.input_bytes;
      if (!keeps(layer)) continue;
      price_.host_bytes += costs_.layers[layer].result_bytes;
    }
    const bool keeps_any = std::any_of(policy_.layers.begin(), policy_.layers.end(), [](const LayerPolicy& layer) { return layer.keep_attention; });
    price_.gpu_bytes += live_bytes_ + (policy_.buffers == 1 && keeps_any ? costs_.largest_result_bytes() : 0);
    return price_;
  }

 private:
  bool groups(int layer) const { return layer >= 0 && costs_.layers[layer].groups_heads; }
  Boundary place(int layer) const { return costs_.place(policy_, layer); }
  bool regenerated(int layer) const { return layer >= 0 && layer < layers_ && place(layer) == Boundary::kRegenerate; }
  bool leaves(int layer) const { return costs_.leaves(policy_, layer); }
  bool keeps(int layer) const { return layer >= 0 && policy_.layers[layer].keep_attention; }
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
      lives(costs_.forward_bytes(layer, keeps(layer), keeps(layer - 1), policy_.buffers));
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

  Beside beside(int layer) const {
    const auto results = [&](int other) { return keeps(other) ? costs_.layers[other].result_bytes : 0; };
    if (regenerated(layer)) return {coming_[layer], layer - source(layer), results(layer - 1), results(source(layer))};
    const bool traverses = regenerated(layer - 1);
    return {coming_[layer], 0, traverses ? 0 : results(layer - 1), traverses ? results(source(layer - 1)) : 0};
  }

  void backward() {
    for (int layer = 0; layer < layers_; ++layer) coming_.push_back(ComingInputs::above(layer > 0 ? &coming_.back() : nullptr, groups(layer - 1), place(layer)));
    lives(costs_.head_bytes(keeps(layers_ - 1), policy_.buffers));
    price_.seconds += std::max(costs_.head.seconds, brought(layers_ - 1));
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      if (regenerated(layer) && !regenerated(layer + 1)) traverse(source(layer), layer);
      const double leaving = layer + 1 < layers_ ? costs_.layers[layer + 1].gradients_seconds : 0;
      price_.seconds += std::max({passes(layer).backward.seconds, brought(layer - 1), leaving});
      lives(costs_.backward_bytes(layer, keeps(layer), beside(layer), policy_.buffers, policy_.regenerate_cap));
      // A run may be traversed again for any of its inputs.
      for (int passed = source(layer); passed < layer; ++passed) {
        const int64_t made = policy_.regenerates_in_ring() ? 0 : std::min<int64_t>(passed - source(layer) + 1, std::max<int64_t>(policy_.regenerate_cap, 2));
        lives(costs_.layers[layer].carried_bytes + costs_.traverse_bytes(passed, keeps(passed), policy_.buffers) +
              (coming_[layer].during_traversal(groups(layer), policy_.buffers) + made) * costs_.input_bytes);
      }
    }
  }

  void traverse(int from, int top) {
    for (int layer = from; layer < top; ++layer) {
      const int64_t times = (top - layer + policy_.regenerate_cap - 1) / policy_.regenerate_cap;
      price_.seconds += static_cast<double>(times) * std::max(passes(layer).traverse.seconds, weights(layer + 1) + results(layer + 1));
    }
  }

  const StepCosts& costs_;
  const Policy& policy_;
  const int layers_;
  std::vector<ComingInputs> coming_;  // by layer
  int64_t live_bytes_ = 0;
  Price price_;
};

}  // namespace

int64_t StepCosts::largest_result_bytes() const {
  int64_t largest = 0;
  for (const LayerCosts& layer : layers) largest = std::max(largest, layer.result_bytes);
  return largest;
}

namespace {

// The layer's results, and others on their way beside them.
int64_t results_beside(const StepCosts& costs, int layer, bool keeps, int64_t others, int64_t buffers) {
  if (buffers == 1) return 0;
  const bool both = !costs.layers[layer].groups_heads && (!keeps || result_buffers(buffers) > 1);
  return (keeps ? costs.layers[layer].result_bytes : 0) + (both ? others : 0);
}

}  // namespace

bool StepCosts::stays(int layer, int64_t buffers) const {
  return layer >= first_staying(count(), buffers, [&](int above) { return layers[above].groups_heads; });
}

Boundary StepCosts::place(const Policy& policy, int layer) const {
  const Boundary place = policy.layers[layer].boundary;
  return place == Boundary::kRegenerate && (layer == 0 || stays(layer, policy.buffers)) ? Boundary::kHost : place;
}

bool StepCosts::leaves(const Policy& policy, int layer) const { return place(policy, layer) == Boundary::kHost && !stays(layer, policy.buffers); }

int64_t StepCosts::forward_bytes(int layer, bool keeps, bool keeps_below, int64_t buffers) const {
  const int64_t inputs = layers[layer].groups_heads ? std::min<int64_t>(buffers, 2) : buffers;
  return layers[layer].carried_bytes + layers[layer].passes[keeps].forward.bytes + inputs * input_bytes +
         results_beside(*this, layer, keeps, keeps_below ? layers[layer - 1].result_bytes : 0, buffers);
}

int64_t StepCosts::backward_bytes(int layer, bool keeps, const Beside& beside, int64_t buffers, int64_t cap) const {
  // `held`: regenerated inputs, the layer's own among them; then the results that the next pass reads.
  const auto with = [&](int64_t held, int64_t next_results) {
    if (regenerates_in_ring(buffers, cap)) held = 0;
    return layers[layer].carried_bytes + layers[layer].passes[keeps].backward.bytes + beside.coming.during_backward(layers[layer].groups_heads, held, buffers) * input_bytes +
           results_beside(*this, layer, keeps, next_results, buffers);
  };
  if (beside.run == 0) return with(0, std::max(beside.results_below, beside.source_results));
  if (beside.run == 1) return with(1, beside.results_below);
  if (cap == 1) return with(1, beside.source_results);
  if (cap > 2) return with(std::min<int64_t>(beside.run, cap), beside.results_below);
  return std::max(with(2, beside.results_below), with(1, beside.source_results));  // it was the last of a traversal, or the one before
}

int64_t StepCosts::traverse_bytes(int layer, bool keeps, int64_t buffers) const {
  return layers[layer].passes[keeps].traverse.bytes + (keeps && buffers > 1 ? layers[layer].result_bytes : 0);
}

int64_t StepCosts::head_bytes(bool keeps_last, int64_t buffers) const {
  int64_t inputs = 1;
  for (int layer = count() - 1; layer >= 0 && stays(layer, buffers); --layer) ++inputs;
  return head.bytes + inputs * input_bytes + (keeps_last && buffers > 1 ? layers.back().result_bytes : 0);
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

Price price(const StepCosts& costs, const Policy& policy) { return Pricing(costs, policy).run(); }

}  // namespace oom::offload
