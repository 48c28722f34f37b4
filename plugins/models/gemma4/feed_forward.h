/// Gemma4's feed-forward: a dense gated MLP beside routed experts, each with norms of its own before and after, and a scalar on the whole stream.
///
/// With N the family's RMS norm, y the attention half's result and s the layer's scalar:
///   d = N1(mlp(N(y))),  t = N2(sum_k w_k expert_k(N'(y))),  z = s (y + N3(d + t)).
/// The router reads y itself: logits = (y / rms(y) * scale / sqrt(H)) Wr^T; w = renormalised top-k of their softmax, times per_expert_scale.
#pragma once

#include <oom/blocks.h>

#include <memory>

namespace oom::gemma4 {

/// Positions name parameters by their place in the layer's list.
struct FeedForwardSettings {
  int64_t hidden = 0, experts = 0, dense_width = 0;
  double epsilon = 1e-6;
  ops::RouterSettings routing;
  int dense_norm = -1, gate = -1, up = -1, down = -1, dense_out_norm = -1;  ///< the dense branch; [I, H], [I, H], [H, I]
  int expert_norm = -1, expert_out_norm = -1;                               ///< around the experts
  int router_scale = -1, router = -1, expert_scale = -1;                    ///< [H], [E, H], [E]
  int out_norm = -1, layer_scalar = -1;                                     ///< of the sum; [1], not trained
};
std::unique_ptr<FeedForward> make_feed_forward(const FeedForwardSettings& settings);

}  // namespace oom::gemma4
