/// Token embedding: lookup and its gradient, whole or by vocabulary slice.
///
/// Tokens are int32 [T]. Rows are FP32 or BF16; the gradient is summed in FP32 per vocabulary row in token order, without atomics: deterministic.
/// Work goes to the current device and stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

/// Writes scale * weight[tokens[t] - begin] to out[t] for tokens in [begin, begin + weight.size(0)); other rows of `out` stay as they are, so that
/// slices of a vocabulary fill it one after another. `weight` [rows, hidden] and `out` [T, hidden] share a type; one rounding of the product.
OOM_API void embedding_forward_out(const at::Tensor& out, const at::Tensor& weight, const at::Tensor& tokens, int64_t begin = 0, double scale = 1.0);
/// The lookup in a whole table: returns [T, hidden]. A token outside the table raises on the CPU and gives a row of NaN on CUDA.
OOM_API at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, double scale = 1.0);

/// sink[v - begin] = scale * sum of d_out[t] over tokens t with tokens[t] == v, for v in [begin, begin + sink rows); other tokens are ignored, and so is
/// `frozen_token` (a padding row that is never trained; -1: none). Overwriting zeroes the rows without tokens; accumulating leaves them alone.
/// `d_out` is [T, hidden], FP32 or BF16.
OOM_API void embedding_backward(const GradientSink& sink, const at::Tensor& d_out, const at::Tensor& tokens, int64_t begin = 0, double scale = 1.0,
                                int64_t frozen_token = -1);

}  // namespace oom::ops
