/// The gated delta rule's kernels for tensor cores, one launch each; launch.cu puts them together.
///
/// Per value head and tile of 64 tokens, with entry state S0 [Dk, Dv], cumulative log decays g (from the tile's first token), C the last token, `o`
/// elementwise, Gam_ij = exp(g_i - g_j) for i >= j else 0, N = strict_lower(K K^T), B = diag(beta):
///   P  = (I + N B)^-1 N              prepare: strictly lower, without decays; (I + N B)^-1 = I - P B
///   G  = Gam o P                     "coupling"
///   Pg = scale Gam o (Q K^T)         "scores"
///   W  = V - e^g o (K S0)            scan
///   E  = W - G (beta o W)            "errors": what each token's delta is beta times
///   S1 = e^{g_C} S0 + K^T (e^{g_C - g} beta o E)
///   O  = scale e^g o (Q S0) + Pg (beta o E)                 output
/// Backward, for dO and dS1:
///   dVn = Pg^T dO + e^{g_C - g} o (K dS1)                   reverse scan
///   dR  = dVn - G^T (beta o dVn);  dU = -e^g beta o dR      gradient of beta o W, and of K S0
///   dS0 = e^{g_C} dS1 + scale Q^T (e^g o dO) + K^T dU
///   dP  = scale Gam o (dO (beta o E)^T)                     gradient
///   dB  = -Gam o strict_lower((beta o dR) (beta o E)^T)     of K K^T
///   dQ  = dP K + scale e^g o (dO S0^T)
///   dK  = dP^T Q + (dB + dB^T) K + e^{g_C - g} beta o (E dS1^T) - e^g beta o (dR S0^T)
///   dV  = beta o dR;  dbeta = rowsum(dR o E)
///   dg  = rowsum(X) - colsum(X) + rowsum(dU o (K S0)) + scale e^g o rowsum((dO S0^T) o Q) - r,   X = dP o (Q K^T) + dB o (K K^T)
///         with r = e^{g_C - g} beta o rowsum((E dS1^T) o K);  dg_C += sum(r) + e^{g_C} <dS1, S0>
///   d log_decay = suffix sums of dg within the tile.
/// Every exponent is at most 0. Products read BF16 operands and add in FP32; the triangle's solution, gates and states are FP32.
#pragma once

#include "ops/gated_delta_rule_cuda.h"

struct __nv_bfloat16;

namespace oom::ops::delta_rule {

constexpr int kTokens = 64;  ///< of a tile
constexpr int kDim = 128;    ///< of keys and of values

/// Rows of a segment, and its tiles.
struct SegmentSpan {
  int32_t begin, end, first_tile, tiles;
};
/// A tile's rows; fewer than kTokens at the end of a segment. Rows that are missing count as zero keys with beta 0 and log decay 0.
struct TileSpan {
  int32_t segment, begin, count, unused;
};

/// What the kernels make for each other, one slot for a tile of the pass and a value head: slot = (tile - tile_begin) value_heads + head.
struct Slots {
  float* gates = nullptr;              ///< [4, 64]: g, e^g, e^{g_C - g}, beta
  __nv_bfloat16* coupling = nullptr;   ///< [64 i, 64 j]
  __nv_bfloat16* scores = nullptr;     ///< [64 i, 64 j]
  __nv_bfloat16* states = nullptr;     ///< [Dv, Dk]: S0^T
  __nv_bfloat16* errors = nullptr;     ///< [Dv, 64]: E^T, or (beta o E)^T
  __nv_bfloat16* d_states = nullptr;   ///< [Dv, Dk]: dS1^T
  __nv_bfloat16* d_errors = nullptr;   ///< [Dv, 64]: dR^T
};

/// Tiles [tile_begin, tile_end) of all, computed at one go; the segments that have tiles among them.
struct Pass {
  DeltaRuleOperands in;
  const SegmentSpan* segments = nullptr;
  const TileSpan* tiles = nullptr;
  int tile_begin = 0, tile_end = 0;
  int segment_begin = 0, segment_count = 0;
  Slots slots;
};

/// Where states come from and go to at the pass's edges, FP32 [value heads, Dk, Dv]; null where no segment crosses the edge.
struct Carry {
  const float* in = nullptr;
  float* out = nullptr;
};

/// What the forward scan keeps for each tile.
enum class Keep : int {
  kNothing,   ///< only the state at the pass's end
  kForOutput, ///< states, and beta o E
  kForGradient, ///< states, and E
};

/// Fills segments and tiles.
void find_tiles(const DeltaRuleOperands& in, SegmentSpan* segments, TileSpan* tiles, int tile_count, Stream stream);
/// Writes gates, coupling and scores.
void prepare(const Pass& pass, Stream stream);
/// Walks the tiles of each segment from its first to its last.
void scan(const Pass& pass, Keep keep, const Carry& carry, float* final_state, Stream stream);
/// Writes `out` [T, Hv, Dv].
void write_output(const Pass& pass, __nv_bfloat16* out, Stream stream);
/// Walks from last to first; writes d_states and d_errors. `carry.in` is at the pass's end, `carry.out` at its beginning.
void reverse_scan(const Pass& pass, const DeltaRuleBackwardLaunch& launch, const Carry& carry, Stream stream);
/// Writes dq, dk, dv, d_log_decay and d_beta.
void write_gradients(const Pass& pass, const DeltaRuleBackwardLaunch& launch, Stream stream);

}  // namespace oom::ops::delta_rule
