/// Routed experts over all tokens of a slice: tokens to expert order, the experts, and back.
///
/// Legend: T tokens, K choices a token, H hidden. One call holds T K rows of X, Y and [T K, 3I] of the experts at once: a caller with little memory
/// cuts the tokens (moe_chunk) and calls again; sinks then accumulate. Runs on the current device and stream, without host synchronisation in BF16 on sm_90.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/experts.h"
#include "oom/ops/permutation.h"
#include "oom/ops/router.h"

namespace oom::ops {

struct MoeForward {
  at::Tensor y;             ///< [T,H]
  at::Tensor z;             ///< [T K,2I] in expert order, when asked for
  Permutation permutation;  ///< of this routing; backward needs it
};
struct MoeBackward {
  at::Tensor dx;         ///< [T,H]
  at::Tensor d_weights;  ///< FP32 [T,K], for route_backward
};

/// y[t] = sum over a token's choices of weight * expert(x[t]), in FP32 with one rounding, plus the residual and shared branches of `terms`, whose
/// `weights` are not read. `x` [T,H] contiguous.
OOM_API MoeForward moe_forward(const at::Tensor& x, const Routing& routing, const ExpertWeights& weights, bool save_z, const CombineTerms& terms = {});
/// Gradients of the routed sum for `dy` [T,H]; the residual and shared branches are the caller's. `z` is overwritten; undefined: computed again.
/// `dx_residual` [T,H], when given, joins dx before its rounding.
OOM_API MoeBackward moe_backward(const at::Tensor& dy, const at::Tensor& x, const Routing& routing, const Permutation& permutation,
                                 const at::Tensor& z, const ExpertWeights& weights, const ExpertSinks& sinks, const at::Tensor& dx_residual = {});

}  // namespace oom::ops
