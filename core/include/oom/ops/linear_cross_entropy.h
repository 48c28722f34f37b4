/// The head of a language model and its loss without the logits of all tokens in memory: chunk after chunk of tokens, gradients made in the forward.
///
/// Legend: T tokens, H hidden, V vocabulary. h [T,H] contiguous, weight [V,H], FP32 or BF16, one type; targets int32 [T] on their device, kIgnoredTarget
/// where a token does not count. Logits are FP32; on BF16 operands the logit gradient is BF16, as every GEMM input. Replay never comes here: keep dh
/// as the start of backward. Runs on the current device and stream, without host synchronisation.
/// Workspace: FP32 logits of one chunk, 4 * chunk_tokens * V bytes. The idea is that of Liger (arXiv 2410.10989).
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/cross_entropy.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

struct LinearCrossEntropySettings {
  /// Targets of the whole global batch that count; the gradient is of the loss sum over this number. Counted on the host, where targets come from.
  int64_t valid_targets = 0;
  int64_t chunk_tokens = 2048;
  /// Logits become cap * tanh(logit / cap) first (Gemma); 0: none.
  double soft_cap = 0;
};

struct LinearCrossEntropy {
  at::Tensor loss_sum;  ///< FP64, no dimensions, on the device: sum over the tokens that count, not divided
  at::Tensor dh;        ///< [T,H] of h's type
};

/// Returns loss and dh; adds (or writes) dW to `head_sink` [V,H], which several chunks sum exactly only where it is FP32. An undefined sink: frozen head.
OOM_API LinearCrossEntropy linear_cross_entropy(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& targets,
                                                const LinearCrossEntropySettings& settings, const GradientSink& head_sink);
/// The loss sum alone (FP64, no dimensions), for evaluation; `valid_targets` is not read.
OOM_API at::Tensor linear_cross_entropy_loss(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& targets,
                                             const LinearCrossEntropySettings& settings);

}  // namespace oom::ops
