#include "runtime/sublayer_price.h"

namespace oom::runtime {

Cost stage_cost(const SublayerCost& cost, const Plan& plan) {
  return {.gemm_flops = cost.gemm_flops,
          .attention_flops = cost.attention_flops,
          .other_flops = cost.other_flops,
          .hbm_bytes = cost.device_bytes,
          .tokens = static_cast<double>(plan.tokens_per_rank()),
          .sequence_length = static_cast<double>(plan.workload.sequence_length),
          .workspace_bytes = cost.workspace_bytes};
}

Cost mixer_price(const Mixer& mixer, Pass pass, const Plan& plan) {
  return stage_cost(mixer.cost(pass, plan.sequences_per_rank(), plan.workload.sequence_length, element_bytes(plan.workload.compute), {}), plan);
}

Cost feed_forward_price(const FeedForward& feed_forward, Pass pass, const Plan& plan) {
  return stage_cost(feed_forward.cost(pass, plan.tokens_per_rank(), element_bytes(plan.workload.compute)), plan);
}

Cost row_price(int tensors, const Plan& plan, int64_t width) {
  const double bytes = static_cast<double>(plan.tokens_per_rank() * width * element_bytes(plan.workload.compute));
  return {.hbm_bytes = tensors * bytes, .tokens = static_cast<double>(plan.tokens_per_rank()), .workspace_bytes = static_cast<int64_t>(bytes)};
}

}  // namespace oom::runtime
