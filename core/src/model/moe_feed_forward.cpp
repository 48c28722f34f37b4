#include <algorithm>

#include "oom/blocks.h"
#include "oom/ops/gate.h"
#include "oom/ops/gated_mlp.h"
#include "oom/ops/linear.h"
#include "oom/ops/rms_norm.h"
#include "oom/ops/scale.h"

namespace oom {
inline namespace abi_1 {
namespace {

class MoeFeedForward final : public FeedForward {
 public:
  explicit MoeFeedForward(const MoeSettings& settings) : settings_(settings) {}

  bool routed() const override { return settings_.experts > 0; }
  bool replays_back() const override { return false; }
  HandedOn hands_on() const override {
    return {.side = settings_.shared.present(), .saves_input = true, .saves_side = settings_.shared_gate < 0, .passes_gradient = true};
  }

  FeedForwardFront front(const at::Tensor& y, const FeedForwardCall& call, Routing& routing, Saved* saved) const override {
    const NormSettings& norm = settings_.input_norm;
    const ops::NormOutput normed = ops::rms_norm_forward(y, call.weights[norm.weight], norm.epsilon, norm.flavour);
    FeedForwardFront front;
    at::Tensor logits, z, branch, gate;
    if (routed()) {
      front.expert_input = normed.y;
      logits = ops::linear_forward(normed.y, call.weights[settings_.router]);
      if (!routing.indices.defined()) {
        routing = ops::route_forward(logits, settings_.routing);
        if (call.statistics.counts.defined()) ops::add_routing_statistics(call.statistics, logits, routing.indices);
      }
    }
    if (settings_.shared.present()) {
      const ops::GatedMlpForward shared = ops::gated_mlp_forward(normed.y, mlp(call.weights));
      z = shared.z;
      front.side = branch = shared.y;
      if (settings_.shared_gate >= 0) {
        gate = ops::linear_forward(normed.y, call.weights[settings_.shared_gate]);
        front.side = ops::row_gate_forward(branch, gate);
      }
    }
    if (saved) saved->tensors = {normed.y, normed.rstd, logits, z, branch, gate};
    return front;
  }

  at::Tensor back(const at::Tensor& y, const at::Tensor& routed, const FeedForwardFront& front, const FeedForwardCall&, Saved*) const override {
    at::Tensor sum = y;
    if (front.side.defined()) sum = ops::add_residual(sum, front.side);
    if (routed.defined()) sum = ops::add_residual(sum, routed);
    return sum;
  }

  at::Tensor back_backward(const at::Tensor& dz, Saved&, const FeedForwardCall&, at::Tensor& dside, at::Tensor& dy) const override {
    dside = settings_.shared.present() ? dz : at::Tensor();
    dy = dz;
    return dz;
  }

  at::Tensor front_backward(const at::Tensor& dexpert_input, const at::Tensor& drouting_weights, const at::Tensor& dside, const at::Tensor& dy, const at::Tensor& y,
                            const Routing& routing, Saved& saved, const FeedForwardCall& call) const override {
    enum { kNormed, kRstd, kLogits, kZ, kBranch, kGate };
    const std::vector<at::Tensor> held = std::move(saved.tensors);
    const LayerGradients& sinks = *call.gradients;
    at::Tensor dnormed = dexpert_input;
    const auto add_product = [&](const at::Tensor& gradient, int weight) {
      ops::linear_wgrad(sinks[weight], gradient, held[kNormed]);
      if (dnormed.defined()) {
        ops::linear_dgrad_out(dnormed, gradient, call.weights[weight], /*accumulate=*/true);
      } else {
        dnormed = ops::linear_dgrad(gradient, call.weights[weight]);
      }
    };
    if (routed()) add_product(ops::route_backward({drouting_weights, call.probability_gradient}, held[kLogits], routing, settings_.routing), settings_.router);
    if (settings_.shared.present()) {
      at::Tensor dbranch = dside;
      if (settings_.shared_gate >= 0) {
        const ops::RowGateGradient gated = ops::row_gate_backward(dside, held[kBranch], held[kGate]);
        dbranch = gated.dx;
        add_product(gated.dgate, settings_.shared_gate);
      }
      const MlpSettings& at = settings_.shared;
      dnormed = ops::gated_mlp_backward(dbranch, held[kNormed], held[kZ], mlp(call.weights), {sinks[at.gate], sinks[at.up], sinks[at.down]}, dnormed);
    }
    const NormSettings& norm = settings_.input_norm;
    return ops::rms_norm_backward(dnormed, y, call.weights[norm.weight], held[kRstd], norm.flavour, sinks[norm.weight], {}, dy).dx;
  }

  SublayerCost cost(Pass pass, int64_t tokens, int64_t element_bytes) const override {
    const double rows = static_cast<double>(tokens), hidden = static_cast<double>(settings_.hidden), element = static_cast<double>(element_bytes);
    const double experts = static_cast<double>(settings_.experts), width = static_cast<double>(settings_.shared.present() ? settings_.shared.width : 0);
    SublayerCost cost;
    const double gemm = 2 * rows * hidden * (experts + 3 * width);
    cost.gemm_flops = pass == Pass::kBackward ? 2 * gemm : gemm;
    cost.device_bytes = rows * element * (pass == Pass::kBackward ? 8 * hidden + 6 * experts + 12 * width : 5 * hidden + 3 * experts + 6 * width);
    cost.saved_bytes = static_cast<int64_t>(rows * (element * (hidden + experts + 2 * width + (width > 0 ? hidden : 0) + (settings_.shared_gate >= 0 ? 1 : 0)) + 4));
    const double gated = settings_.shared_gate >= 0 ? hidden : 0;
    // Forward: logits and what the branch makes, its result before the gate among it. Replay saves those. Backward adds to the experts' gradient where there is
    // one; the branch is done when the result is made.
    const double live = pass == Pass::kBackward  ? (routed() ? 0 : hidden) + std::max(2 * experts, gated + 5 * width - hidden)
                        : pass == Pass::kForward ? (routed() ? 0 : hidden) + 2 * experts + std::max({3 * width, 2 * width + gated, 4 * width - hidden})
                                                 : experts + std::max(width, 2 * width - hidden);
    cost.workspace_bytes = static_cast<int64_t>(rows * element * live);
    return cost;
  }

 private:
  ops::GatedMlpWeights mlp(const LayerWeights& weights) const {
    const MlpSettings& at = settings_.shared;
    return {weights[at.gate], weights[at.up], weights[at.down], at.activation};
  }

  MoeSettings settings_;
};

}  // namespace

std::unique_ptr<FeedForward> make_moe(const MoeSettings& settings) { return std::make_unique<MoeFeedForward>(settings); }

}  // namespace abi_1
}  // namespace oom
