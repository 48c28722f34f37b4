#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

Cost stage_cost(const SublayerCost& cost, int64_t tokens, const Plan& plan) {
  return {.gemm_flops = cost.gemm_flops,
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
  return stage_cost(mixer_cost(mixer, pass, part, plan), part.sequences * length, plan);
}

Cost feed_forward_price(const FeedForward& feed_forward, Pass pass, int64_t tokens, const Plan& plan) {
  return stage_cost(feed_forward.cost(pass, tokens, element_bytes(plan.workload.compute)), tokens, plan);
}

Cost row_price(int tensors, int64_t tokens, const Plan& plan, int64_t width) {
  const double bytes = static_cast<double>(tokens * width * element_bytes(plan.workload.compute));
  return {.hbm_bytes = tensors * bytes, .tokens = static_cast<double>(tokens), .workspace_bytes = static_cast<int64_t>(bytes)};
}

}  // namespace oom::runtime
