/// Moving tokens to expert order and back.
///
/// A choice (t, k) says that token t uses expert indices[t, k]. Sorted by (expert, token, slot), choice number r is row r of every expert-ordered
/// buffer. Rows are FP32 or BF16 (copies: any type) with a contiguous last dimension. Rows of a call: below 2^31; byte offsets are 64-bit.
/// Work goes to the current device and stream and never waits for the device. Deterministic: no atomics on sums, fixed orders.
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

struct Permutation {
  at::Tensor counts;    ///< int32 [E]: rows of each expert
  at::Tensor ends;      ///< int32 [E]: where each expert's rows end; its rows begin at ends[e] - counts[e]
  at::Tensor token_of;  ///< int32 [T * K]: row -> token
  at::Tensor row_of;    ///< int32 [T, K]: choice -> row
};

/// Sorts choices. `indices` is int32 [T, K], each in [0, experts); experts <= 1024. An index outside raises on the CPU and is undefined on CUDA.
OOM_API Permutation make_permutation(const at::Tensor& indices, int64_t experts);

/// Returns rows x[source[i]] as [source.numel(), width]; `x` is [rows, width], `source` int32.
OOM_API at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& source);
/// Copies row source[i] of `x` to row target[i] of `out`, for every i below the count that both agree on; an undefined index stands for i itself.
/// Targets must differ. A negative source writes zeros; a negative target skips the row. Any element type; last dimensions contiguous.
OOM_API void copy_rows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& source, const at::Tensor& target = {});

/// What joins the sum of a token's rows.
struct CombineTerms {
  at::Tensor weights;       ///< FP32 [T, K]; undefined: all one, which makes combine the gradient of gather_rows(x, token_of)
  at::Tensor residual;      ///< [T, width] of the rows' type, or undefined
  at::Tensor shared;        ///< [T, width] of the rows' type, or undefined: a branch that every token takes
  at::Tensor shared_scale;  ///< [T] of the rows' type or FP32, factor on `shared`; undefined: one
};

/// y[t] = residual[t] + shared_scale[t] * shared[t] + sum_k weights[t, k] * rows[row_of[t, k]]: the sum in slot order in FP32, then the shared branch,
/// then the residual, one rounding. `rows` is [*, width]; y is [T, width] of the rows' type.
OOM_API at::Tensor combine(const at::Tensor& rows, const at::Tensor& row_of, const CombineTerms& terms = {});
/// The same into `y`, which may be residual or shared.
OOM_API void combine_out(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& row_of, const CombineTerms& terms = {});

/// Returns FP32 [T * K] in row order: out[row_of[t, k]] = choices[t, k] (routing weights for the expert backward).
OOM_API at::Tensor choices_to_rows(const at::Tensor& choices, const at::Tensor& row_of);
/// Returns FP32 [T, K]: out[t, k] = rows[row_of[t, k]] (gradients of routing weights for the router).
OOM_API at::Tensor rows_to_choices(const at::Tensor& rows, const at::Tensor& row_of);

}  // namespace oom::ops
