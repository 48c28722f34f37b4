/// Routing of tokens to experts: softmax, top-k and weights, with explicit gradients, and the statistics of the auxiliary loss.
///
/// For a token's logits l[E]: p = softmax(l) in FP32 over all experts; the K largest are chosen (equal logits: the lower index first), in descending
/// order; w_k = p[e_k], divided by their sum when renormalising, then rounded to the logits' type where the family does so.
/// Routing is saved by the forward and reused in replay: top-k never runs twice. Work goes to the current device and stream. Deterministic.
/// Limits: 1 <= K <= E <= 1024.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

struct RouterSettings {
  int64_t top_k = 0;
  bool renormalise = true;
  bool round_weights = false;  ///< weights are rounded to the logits' type (Qwen3, Qwen3.5) or stay FP32 (Mixtral, Gemma4)
};

struct Routing {
  at::Tensor indices;  ///< int32 [tokens, K]; K distinct experts even where logits are not finite
  at::Tensor weights;  ///< FP32 [tokens, K]
};

/// Routes by `logits` [tokens, E], FP32 or BF16, contiguous. `expert_scale` [E] (Gemma4), when given, multiplies the finished weights.
OOM_API Routing route_forward(const at::Tensor& logits, const RouterSettings& settings, const at::Tensor& expert_scale = {});

/// What arrives at the router from behind.
struct RoutingGradient {
  at::Tensor d_weights;         ///< FP32 [tokens, K]; undefined: none
  at::Tensor aux_coefficients;  ///< FP32 [E]: c[e] adds sum_e c[e] p[n, e] over tokens n to the loss; undefined: none
};

/// Returns the gradient of the logits, of their sizes and type; `routing` is the forward's. `scale_sink` receives the gradient of `expert_scale`.
/// Rounding of the weights has gradient one.
OOM_API at::Tensor route_backward(const RoutingGradient& gradient, const at::Tensor& logits, const Routing& routing, const RouterSettings& settings,
                                  const at::Tensor& expert_scale = {}, const GradientSink& scale_sink = {});

/// Sums over tokens that the auxiliary loss pools over layers, slices and ranks: with N pooled rows,
/// loss = E * sum_e (counts[e] / N) * (probability_sums[e] / N), so c[e] = coefficient * E * counts[e] / N^2.
struct RoutingStatistics {
  at::Tensor counts;            ///< int64 [E]: choices of each expert, all K of a token
  at::Tensor probability_sums;  ///< FP64 [E]
};

/// Returns statistics of no tokens on `device`.
OOM_API RoutingStatistics no_routing_statistics(int64_t experts, c10::Device device);
/// Adds the tokens of `logits` and `indices` to `statistics`.
OOM_API void add_routing_statistics(const RoutingStatistics& statistics, const at::Tensor& logits, const at::Tensor& indices);

}  // namespace oom::ops
