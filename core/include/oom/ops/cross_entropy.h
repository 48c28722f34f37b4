/// Cross entropy of logit rows with its gradient in one pass over them, for use chunk by chunk: the loss is the last operation of a model, so its
/// gradient can be made in the forward.
///
/// For row t with target y: z = cap * tanh(x / cap) (z = x without a cap), loss = logsumexp(z) - z[y],
/// gradient = scale * (softmax(z) - onehot(y)) * (1 - (z / cap)^2). Rows with target kIgnoredTarget have loss 0 and gradient 0.
/// FP32 inside, one rounding of the gradient. Work goes to the current device and stream. Deterministic.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

constexpr int32_t kIgnoredTarget = -100;

struct CrossEntropySettings {
  double scale = 1.0;     ///< of the gradient: 1 / (number of targets of the global batch that count)
  double soft_cap = 0.0;  ///< 0: none
};

/// Writes the loss of each row of `logits` [T, V] (FP32 or BF16, row stride at will) for `targets` (int32 [T]) to `losses` (FP32 [T]), and the gradient
/// to `gradient` [T, V], FP32 or BF16: the logits themselves, a BF16 view of their FP32 storage whose rows start where theirs do
/// (bf16_gradient_view), or another tensor; undefined: not wanted. A target outside the vocabulary raises on the CPU and gives loss NaN on CUDA.
OOM_API void cross_entropy(const at::Tensor& losses, const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& targets,
                           const CrossEntropySettings& settings);

/// Returns BF16 [T, V] whose row t is the first half of row t of FP32 `logits`.
OOM_API at::Tensor bf16_gradient_view(const at::Tensor& logits);

}  // namespace oom::ops
