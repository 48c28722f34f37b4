#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

// What the small operators of a stage take however few its rows: launches, and kernels too short to fill a GPU. Measured on two H200 with attention
// cut into single heads of single sequences of 4096 tokens: 0.18 to 0.24 ms forward and 0.48 to 0.58 ms backward beside their arithmetic.
constexpr double kMixerLaunches = 0.2e-3, kMixerBackwardLaunches = 0.5e-3, kFeedForwardLaunches = 0.05e-3, kFeedForwardBackwardLaunches = 0.1e-3;

Cost stage_cost(const SublayerCost& cost, int64_t tokens, const Plan& plan, double launches) {
  return {.fixed_seconds = plan.device == DeviceKind::kCuda ? launches : 0,
          .gemm_flops = cost.gemm_flops,
          .attention_flops = cost.attention_flops,
          .other_flops = cost.other_flops,
          .hbm_bytes = cost.device_bytes,
          .tokens = static_cast<double>(tokens),
          .sequence_length = static_cast<double>(plan.workload.sequence_length),
          .workspace_bytes = cost.workspace_bytes};
}

}  // namespace

SublayerCost mixer_cost(const Mixer& mixer, Pass pass, const MixerPart& part, const Plan& plan) {
  return mixer.cost(pass, part.sequences, plan.workload.sequence_length, element_bytes(plan.workload.compute), part.slice);
}

Cost mixer_price(const Mixer& mixer, Pass pass, const MixerPart& part, const Plan& plan) {
  const int64_t length = part.slice.axis == Axis::kSequence ? part.slice.end - part.slice.begin : plan.workload.sequence_length;
  const bool backward = pass == Pass::kBackward || pass == Pass::kAttendBackward;
  return stage_cost(mixer_cost(mixer, pass, part, plan), part.sequences * length, plan, backward ? kMixerBackwardLaunches : kMixerLaunches);
}

Cost feed_forward_price(const FeedForward& feed_forward, Pass pass, int64_t tokens, const Plan& plan) {
  return stage_cost(feed_forward.cost(pass, tokens, element_bytes(plan.workload.compute)), tokens, plan,
                    pass == Pass::kBackward ? kFeedForwardBackwardLaunches : kFeedForwardLaunches);
}

Cost row_price(int tensors, int64_t tokens, const Plan& plan, int64_t width) {
  const double bytes = static_cast<double>(tokens * width * element_bytes(plan.workload.compute));
  return {.hbm_bytes = tensors * bytes, .tokens = static_cast<double>(tokens), .workspace_bytes = static_cast<int64_t>(bytes)};
}

}  // namespace oom::runtime
