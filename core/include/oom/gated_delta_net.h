/// The Gated DeltaNet sublayer (arXiv 2412.06464), built from the core's operators and configured by data as those of blocks.h.
#pragma once

#include <memory>

#include "oom/blocks.h"

namespace oom {
inline namespace abi_1 {

/// With n = norm(x):  [q | k | v] = silu(conv(Wqkv n)),  q and k L2-normalised a head,  g = -exp(A_log) softplus(Wa n + dt_bias),  beta = sigmoid(Wb n),
///   y = x + Wo (norm(rule(q, k, v, g, beta)) * silu(Wz n)).
/// Rule, convolution, gates and norms: oom/ops. The norm of the rule's output is the gated flavour, a head at a time, with one weight for all heads.
///
/// Axes: whole, sequences, and kSequence, whose slices hand on {FP32 state [B, value heads, key dim, value dim], convolution context
/// [B, taps - 1, channels]}; backward hands their gradients back, both FP32. The context is of the compute type.
struct GatedDeltaNetSettings {
  int64_t hidden = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 4;
  double l2_epsilon = 1e-6;
  NormSettings input_norm;
  NormSettings output_norm;         ///< weight [value_dim]; its flavour is kGated whatever is said here
  int qkv = -1;                     ///< [channels, H], channels = 2 key_heads key_dim + value_heads value_dim: queries, keys, values
  int z = -1;                       ///< [value_heads value_dim, H]
  int a = -1, b = -1;               ///< [value_heads, H]
  int conv = -1;                    ///< [channels, 1, taps]
  int a_log = -1, dt_bias = -1;     ///< [value_heads]
  int output = -1;                  ///< [H, value_heads value_dim]
};
OOM_API std::unique_ptr<Mixer> make_gated_delta_net(const GatedDeltaNetSettings& settings);

}  // namespace abi_1
}  // namespace oom
