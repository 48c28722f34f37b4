#include "feed_forward.h"

#include <oom/ops/gated_mlp.h>
#include <oom/ops/linear.h>
#include <oom/ops/rms_norm.h>
#include <oom/ops/scale.h>

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

namespace oom::gemma4 {
namespace {

constexpr ops::NormFlavour kFlavour = ops::NormFlavour::kPlain;

class Gemma4FeedForward final : public FeedForward {
 public:
  explicit Gemma4FeedForward(const FeedForwardSettings& settings) : settings_(settings), router_factor_(1.0 / std::sqrt(static_cast<double>(settings.hidden))) {}

  bool routed() const override { return true; }
  bool replays_back() const override { return true; }
  HandedOn hands_on() const override { return {.saved_by_back = 2}; }

  FeedForwardFront front(const at::Tensor& y, const FeedForwardCall& call, Routing& routing, Saved* saved) const override {
    const LayerWeights& weights = call.weights;
    // The three norms of y share their statistic.
    const ops::NormOutput dense_in = norm(y, weights[settings_.dense_norm]);
    const ops::GatedMlpForward dense = ops::gated_mlp_forward(dense_in.y, mlp(weights));
    const ops::NormOutput side = norm(dense.y, weights[settings_.dense_out_norm]);
    const at::Tensor router_in = norm(y, router_weight(weights)).y;
    const at::Tensor logits = ops::linear_forward(router_in, weights[settings_.router]);
    if (!routing.indices.defined()) {
      routing = ops::route_forward(logits, settings_.routing, weights[settings_.expert_scale]);
      if (call.statistics.counts.defined()) ops::add_routing_statistics(call.statistics, logits, routing.indices);
    }
    if (saved) saved->tensors = {dense_in.y, dense_in.rstd, dense.z, dense.y, side.rstd, router_in, logits};
    return {.expert_input = norm(y, weights[settings_.expert_norm]).y, .side = side.y};
  }

  at::Tensor back(const at::Tensor& y, const at::Tensor& routed, const FeedForwardFront& front, const FeedForwardCall& call, Saved* saved) const override {
    const LayerWeights& weights = call.weights;
    const ops::NormOutput experts_out = norm(routed, weights[settings_.expert_out_norm]);
    const at::Tensor& sum = experts_out.y;
    ops::add_scaled_out(sum, front.side, sum);
    const ops::NormOutput out = norm(sum, weights[settings_.out_norm]);
    if (saved) saved->tensors.insert(saved->tensors.end(), {routed, experts_out.rstd, sum, out.rstd});
    ops::add_scaled_out(out.y, y, out.y);
    ops::scale_by_out(out.y, out.y, weights[settings_.layer_scalar]);
    return out.y;
  }

  at::Tensor back_backward(const at::Tensor& dz, Saved& saved, const FeedForwardCall& call, at::Tensor& dside, at::Tensor& dy) const override {
    const LayerWeights& weights = call.weights;
    const LayerGradients& sinks = *call.gradients;
    std::vector<at::Tensor>& held = saved.tensors;
    dy = at::empty_like(dz);
    ops::scale_by_out(dy, dz, weights[settings_.layer_scalar]);
    dside = norm_gradient(dy, held[kSum], weights[settings_.out_norm], held[kSumRstd], sinks[settings_.out_norm]);
    const at::Tensor drouted = norm_gradient(dside, held[kRouted], weights[settings_.expert_out_norm], held[kRoutedRstd], sinks[settings_.expert_out_norm]);
    held.resize(kRouted);
    // A buffer has no gradient; its place in the layer's array must still hold a number.
    if (const GradientSink& sink = sinks[settings_.layer_scalar]; !sink.accumulate) sink.tensor.zero_();
    return drouted;
  }

  at::Tensor front_backward(const at::Tensor& dexpert_input, const at::Tensor& drouting_weights, const at::Tensor& dside, const at::Tensor& dy, const at::Tensor& y,
                            const Routing& routing, Saved& saved, const FeedForwardCall& call) const override {
    const LayerWeights& weights = call.weights;
    const LayerGradients& sinks = *call.gradients;
    const std::vector<at::Tensor> held = std::move(saved.tensors);
    const at::Tensor& rstd = held[kRstd];
    at::Tensor ddense = norm_gradient(dside, held[kDense], weights[settings_.dense_out_norm], held[kDenseRstd], sinks[settings_.dense_out_norm]);
    ddense = ops::gated_mlp_backward(ddense, held[kDenseIn], held[kZ], mlp(weights), {.gate = sinks[settings_.gate], .up = sinks[settings_.up], .down = sinks[settings_.down]});
    at::Tensor sum = norm_gradient(ddense, y, weights[settings_.dense_norm], rstd, sinks[settings_.dense_norm], dy);
    ddense = at::Tensor();
    sum = norm_gradient(dexpert_input, y, weights[settings_.expert_norm], rstd, sinks[settings_.expert_norm], sum);

    const at::Tensor dlogits = ops::route_backward({drouting_weights, call.probability_gradient}, held[kLogits], routing, settings_.routing,
                                                   weights[settings_.expert_scale], sinks[settings_.expert_scale]);
    ops::linear_wgrad(sinks[settings_.router], dlogits, held[kRouterIn]);
    const at::Tensor weight = router_weight(weights);
    const at::Tensor dweight = at::empty_like(weight);
    sum = norm_gradient(ops::linear_dgrad(dlogits, weights[settings_.router]), y, weight, rstd, {dweight, /*accumulate=*/false}, sum);
    const GradientSink& scale = sinks[settings_.router_scale];
    ops::scale_out(dweight, dweight, router_factor_);
    at::Tensor target = scale.tensor;
    if (scale.accumulate) {
      target.add_(dweight);
    } else {
      target.copy_(dweight);
    }
    return sum;
  }

  SublayerCost cost(Pass pass, int64_t tokens, int64_t element_bytes) const override {
    const double rows = static_cast<double>(tokens), hidden = static_cast<double>(settings_.hidden), element = static_cast<double>(element_bytes);
    const double experts = static_cast<double>(settings_.experts), width = static_cast<double>(settings_.dense_width);
    const bool backward = pass == Pass::kBackward;
    SublayerCost cost;
    const double gemm = 2 * rows * hidden * (experts + 3 * width);
    cost.gemm_flops = backward ? 2 * gemm : gemm;
    cost.device_bytes = rows * element * (backward ? 30 * hidden + 6 * experts + 14 * width : 19 * hidden + 3 * experts + 10 * width);
    cost.saved_bytes = static_cast<int64_t>(rows * (element * (3 * hidden + experts + 2 * width) + 4 * 4));
    const double live = backward                 ? std::max(2 * hidden + 2 * experts, hidden + 5 * width)
                        : pass == Pass::kForward ? std::max(3 * hidden + 2 * width + 2 * experts, 4 * width)
                                                 : experts + std::max(width, 2 * width - hidden);  // the others are saved
    cost.workspace_bytes = static_cast<int64_t>(rows * element * live);
    return cost;
  }

 private:
  /// What front saves, and behind it what back saves.
  enum Held { kDenseIn, kRstd, kZ, kDense, kDenseRstd, kRouterIn, kLogits, kRouted, kRoutedRstd, kSum, kSumRstd };

  ops::NormOutput norm(const at::Tensor& x, const at::Tensor& weight) const { return ops::rms_norm_forward(x, weight, settings_.epsilon, kFlavour); }

  static at::Tensor norm_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, const GradientSink& sink, const at::Tensor& residual = {}) {
    return ops::rms_norm_backward(dy, x, weight, rstd, kFlavour, sink, {}, residual).dx;
  }

  ops::GatedMlpWeights mlp(const LayerWeights& weights) const {
    return {weights[settings_.gate], weights[settings_.up], weights[settings_.down], ops::GatedActivation::kGeluTanh};
  }

  /// scale / sqrt(H) in FP32, the weight of the router's norm: one rounding of its product with the normalised row.
  at::Tensor router_weight(const LayerWeights& weights) const {
    const at::Tensor weight = weights[settings_.router_scale].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    ops::scale_out(weight, weight, router_factor_);
    return weight;
  }

  FeedForwardSettings settings_;
  double router_factor_;
};

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(const FeedForwardSettings& settings) { return std::make_unique<Gemma4FeedForward>(settings); }

}  // namespace oom::gemma4
