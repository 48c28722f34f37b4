/// Rotary position embedding: frequencies, tables of cosines and sines, and the rotation with its inverse.
///
/// Half-split pairing over the first d = 2 * frequencies dimensions of a head: dimension i pairs with i + d/2;
///   y[i] = x[i] cos - x[i + d/2] sin,   y[i + d/2] = x[i + d/2] cos + x[i] sin,   angle = position * frequency[i], all in FP32, one rounding.
/// The gradient is the inverse rotation. Formulas: Hugging Face transformers 5.17 (default, yarn and proportional rotary types).
#pragma once

#include <ATen/core/Tensor.h>

#include "oom/error.h"

namespace oom::ops {

enum class RotaryKind {
  kDefault,       ///< theta^(-2i/d) over d = int(head_dim * partial_factor) dimensions
  kYarn,          ///< default, with frequencies stretched by `factor` where they turn too slowly, and cos and sin scaled by 0.1 ln(factor) + 1
  kProportional,  ///< over the whole head: theta^(-2i/head_dim) for the first int(partial_factor * head_dim / 2), zero (no rotation) for the rest
};

struct RotarySettings {
  RotaryKind kind = RotaryKind::kDefault;
  double theta = 10000.0;
  int64_t head_dim = 0;
  double partial_factor = 1.0;
  double factor = 1.0;          ///< kYarn: context extension; kProportional: divides the frequencies
  int64_t original_length = 0;  ///< kYarn: tokens of the context that the model was trained with
  double beta_fast = 32.0;      ///< kYarn
  double beta_slow = 1.0;       ///< kYarn
};

struct RotaryFrequencies {
  at::Tensor inverse;    ///< FP32 [d/2] on the CPU
  double scaling = 1.0;  ///< multiplies cosines and sines
};

/// Returns the frequencies; raises ConfigError for settings that make none.
OOM_API RotaryFrequencies rotary_frequencies(const RotarySettings& settings);

struct RotaryTable {
  at::Tensor cosine;  ///< [tokens, d/2] in the model's type
  at::Tensor sine;
};

/// Returns the table of `positions` (int32 [tokens], on the device that shall hold it). The host waits for nothing.
OOM_API RotaryTable rotary_table(const RotaryFrequencies& frequencies, const at::Tensor& positions, at::ScalarType type);

/// Rotates `x` [tokens, heads, head_dim] into `y` (which may be x itself). Both of the table's type, last dimension contiguous, leading two strided at
/// will. Dimensions beyond d are copied.
OOM_API void rotary_forward_out(const at::Tensor& y, const at::Tensor& x, const RotaryTable& table);
/// Rotates the gradient `dy` back into `dx` (which may be dy itself).
OOM_API void rotary_backward_out(const at::Tensor& dx, const at::Tensor& dy, const RotaryTable& table);

}  // namespace oom::ops
