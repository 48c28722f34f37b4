/// The gated delta rule's tile form in LibTorch's batched products: the CPU device, and CUDA where no kernel serves the shape.
#pragma once

#include "oom/ops/gated_delta_rule.h"

namespace oom::ops {

/// B sequences of one segment each: q, k [B,S,Hk,Dk], v [B,S,Hv,Dv], log_decay and beta [B,S,Hv]; states FP32 [B,Hv,Dk,Dv].
struct TiledSequences {
  at::Tensor q, k, v, log_decay, beta;
  double scale = 1.0;
  at::Tensor initial_state;  ///< undefined: zero
};

/// Writes out [B,S,Hv,Dv] and returns the final state.
at::Tensor delta_rule_forward_tiles(const at::Tensor& out, const TiledSequences& in);

struct TiledGradients {
  at::Tensor dq, dk, dv, d_log_decay, d_beta;
};
/// Writes the gradients and returns that of the initial state. `d_final_state` undefined: zero.
at::Tensor delta_rule_backward_tiles(const TiledGradients& out, const at::Tensor& dout, const at::Tensor& d_final_state, const TiledSequences& in);

/// Scratch of one call over `tokens` tokens of the longest batch of segments.
int64_t delta_rule_tiles_workspace_bytes(const DeltaRuleProblem& problem, bool backward);

}  // namespace oom::ops
