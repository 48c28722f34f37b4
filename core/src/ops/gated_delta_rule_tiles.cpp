// Every name below is a matrix a tile and value head: [n, Z, C, ..] with n tiles, Z = B * Hv, C = kDeltaRuleTile, all FP32. With the entry state S, and G
// the sum of log decays from the tile's start, Gam[i,j] = exp(G[i] - G[j]) for i >= j, else 0:
//   T = (I + strict_lower(diag(beta) K K^T))^-1,   M = (Gam o T) diag(beta),   W = V - e^G o (K S),   Vn = M W
//   O = scale (e^G o (Q S)) + P Vn,   P = scale Gam o (Q K^T),   S' = e^{G_C} S + K^T (e^{G_C - G} o Vn)
// The gate enters after the inversion: (I + Gam o L)^-1 = Gam o (I + L)^-1. No exponent is positive, and masks come before exponentials.
#include "ops/gated_delta_rule_tiles.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <mutex>

namespace oom::ops {
namespace {

constexpr int64_t kTile = kDeltaRuleTile;

/// LibTorch loads its linear algebra for GPUs at its first use, and refuses when two threads come to that at once.
void load_linear_algebra(const at::Tensor& like) {
  if (like.is_cpu()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    const at::Tensor one = at::eye(1, like.options());
    (void)at::linalg_solve_triangular(one, one, /*upper=*/false);
  });
}

/// [B,S,H,..] in tiles of FP32 rows, zeros behind the end, each key head repeated for its value heads: [n, B * Hv, C, ..].
at::Tensor in_tiles(const at::Tensor& x, int64_t value_heads) {
  const int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), tiles = (length + kTile - 1) / kTile;
  const int64_t width = x.dim() == 4 ? x.size(3) : 1;
  at::Tensor rows = x.reshape({batch, length, heads, width}).to(at::kFloat);
  if (tiles * kTile != length) rows = at::constant_pad_nd(rows, {0, 0, 0, 0, 0, tiles * kTile - length});
  rows = rows.view({batch, tiles, kTile, heads, width}).permute({1, 0, 3, 2, 4});
  if (heads != value_heads) rows = rows.unsqueeze(3).expand({tiles, batch, heads, value_heads / heads, kTile, width});
  rows = rows.reshape({tiles, batch * value_heads, kTile, width});
  return x.dim() == 4 ? rows : rows.squeeze(3);
}

/// Back from tiles into `out` [B,S,H,..], summed over the value heads of each of its heads.
void from_tiles(const at::Tensor& out, const at::Tensor& tiled) {
  const int64_t batch = out.size(0), length = out.size(1), heads = out.size(2), tiles = tiled.size(0), value_heads = tiled.size(1) / batch;
  const int64_t width = out.dim() == 4 ? out.size(3) : 1;
  at::Tensor rows = tiled.view({tiles, batch, heads, value_heads / heads, kTile, width});
  rows = heads == value_heads ? rows.squeeze(3) : rows.sum(3);
  rows = rows.permute({1, 0, 3, 2, 4}).reshape({batch, tiles * kTile, heads, width}).narrow(1, 0, length);
  at::Tensor target = out;
  target.copy_(out.dim() == 4 ? rows : rows.squeeze(3));
}

/// Products of the last two dimensions over all tiles at once.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t matrices = a.size(0) * a.size(1);
  return at::bmm(a.reshape({matrices, a.size(2), a.size(3)}), b.reshape({matrices, b.size(2), b.size(3)})).view({a.size(0), a.size(1), a.size(2), b.size(3)});
}
at::Tensor transposed(const at::Tensor& a) { return a.transpose(-2, -1); }
/// diag(factor) a.
at::Tensor scale_rows(const at::Tensor& factor, const at::Tensor& a) { return factor.unsqueeze(-1) * a; }
at::Tensor row_sum(const at::Tensor& a) { return a.sum(-1); }
at::Tensor column_sum(const at::Tensor& a) { return a.sum(-2); }

/// What does not depend on states.
struct Tiles {
  at::Tensor q, k, v, beta;
  at::Tensor grown;      // e^G
  at::Tensor remaining;  // e^{G_C - G}
  at::Tensor whole;      // e^{G_C} [n, Z]
  at::Tensor gam, keys, inverse, gated_inverse, m, p;  // [n, Z, C, C]; keys = K K^T

  Tiles(const TiledSequences& in) {
    const int64_t heads = in.v.size(2);
    q = in_tiles(in.q, heads);
    k = in_tiles(in.k, heads);
    v = in_tiles(in.v, heads);
    beta = in_tiles(in.beta, heads);
    const at::Tensor sums = at::cumsum(in_tiles(in.log_decay, heads), -1);
    const at::Tensor last = sums.narrow(-1, kTile - 1, 1);
    grown = at::exp(sums);
    remaining = at::exp(last - sums);
    whole = at::exp(last.squeeze(-1));
    const at::Tensor token = at::arange(kTile, sums.options().dtype(at::kLong));
    const at::Tensor later = token.unsqueeze(0) > token.unsqueeze(1);
    gam = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill_(later, -std::numeric_limits<float>::infinity()).exp_();
    keys = product(k, transposed(k));
    const at::Tensor unit = at::eye(kTile, sums.options());
    load_linear_algebra(keys);
    inverse = at::linalg_solve_triangular(scale_rows(beta, keys).tril_(-1).add_(unit), unit.expand_as(keys), /*upper=*/false, /*left=*/true,
                                          /*unitriangular=*/true).contiguous();
    gated_inverse = gam * inverse;
    m = gated_inverse * beta.unsqueeze(-2);
    p = product(q, transposed(k)).mul_(gam).mul_(in.scale);
  }
  int64_t count() const { return q.size(0); }
};

at::Tensor entry_state(const TiledSequences& in) {
  const int64_t matrices = in.v.size(0) * in.v.size(2), rows = in.k.size(3), columns = in.v.size(3);
  return in.initial_state.defined() ? in.initial_state.reshape({matrices, rows, columns}).to(at::kFloat)
                                    : at::zeros({matrices, rows, columns}, in.v.options().dtype(at::kFloat));
}

/// One tile's new values and the state behind it.
struct TileStep {
  at::Tensor w, values, state;
};
TileStep step(const Tiles& tiles, int64_t i, const at::Tensor& state) {
  TileStep step;
  step.w = tiles.v[i] - scale_rows(tiles.grown[i], at::bmm(tiles.k[i], state));
  step.values = at::bmm(tiles.m[i], step.w);
  step.state = at::baddbmm(tiles.whole[i].unsqueeze(-1).unsqueeze(-1) * state, transposed(tiles.k[i]), scale_rows(tiles.remaining[i], step.values));
  return step;
}

at::Tensor as_states(const at::Tensor& state, const TiledSequences& in) {
  return state.view({in.v.size(0), in.v.size(2), in.k.size(3), in.v.size(3)});
}

}  // namespace

at::Tensor delta_rule_forward_tiles(const at::Tensor& out, const TiledSequences& in) {
  const Tiles tiles(in);
  at::Tensor state = entry_state(in);
  const at::Tensor tiled = at::empty(tiles.v.sizes(), tiles.v.options());
  for (int64_t i = 0; i < tiles.count(); ++i) {
    const TileStep next = step(tiles, i, state);
    at::Tensor rows = tiled[i];
    rows.copy_(scale_rows(tiles.grown[i], at::bmm(tiles.q[i], state)).mul_(in.scale).baddbmm_(tiles.p[i], next.values));
    state = next.state;
  }
  from_tiles(out, tiled);
  return as_states(state, in);
}

at::Tensor delta_rule_backward_tiles(const TiledGradients& out, const at::Tensor& dout, const at::Tensor& d_final_state, const TiledSequences& in) {
  const Tiles t(in);
  const at::Tensor d_out = in_tiles(dout, in.v.size(2));
  const int64_t count = t.count(), matrices = t.v.size(1), rows = t.k.size(3), columns = t.v.size(3);
  const at::Tensor states = at::empty({count, matrices, rows, columns}, t.v.options());
  const at::Tensor w = at::empty(t.v.sizes(), t.v.options()), values = at::empty(t.v.sizes(), t.v.options());
  at::Tensor state = entry_state(in);
  for (int64_t i = 0; i < count; ++i) {
    states[i].copy_(state);
    const TileStep next = step(t, i, state);
    w[i].copy_(next.w);
    values[i].copy_(next.values);
    state = next.state;
  }

  // Tiles in reverse: gradients of the state behind each, of its new values and of W.
  const at::Tensor d_states = at::empty(states.sizes(), states.options());
  const at::Tensor d_values = at::empty(t.v.sizes(), t.v.options()), d_w = at::empty(t.v.sizes(), t.v.options());
  at::Tensor d_state = d_final_state.defined() ? d_final_state.reshape({matrices, rows, columns}) : at::zeros_like(state);
  for (int64_t i = count - 1; i >= 0; --i) {
    d_states[i].copy_(d_state);
    d_values[i].copy_(at::baddbmm(scale_rows(t.remaining[i], at::bmm(t.k[i], d_state)), transposed(t.p[i]), d_out[i]));
    d_w[i].copy_(at::bmm(transposed(t.m[i]), d_values[i]));
    d_state = (t.whole[i].unsqueeze(-1).unsqueeze(-1) * d_state)
                  .baddbmm_(transposed(t.q[i]), scale_rows(t.grown[i], d_out[i]).mul_(in.scale))
                  .baddbmm_(transposed(t.k[i]), scale_rows(t.grown[i], d_w[i]).neg_());
  }

  // The rest needs no order. Dots name elementwise products.
  const at::Tensor d_read = scale_rows(t.grown, d_w).neg_();  // of K S
  const at::Tensor d_p = product(d_out, transposed(values)).tril_();
  const at::Tensor d_m = product(d_values, transposed(w)).tril_();
  const at::Tensor d_gated = d_m * t.beta.unsqueeze(-2);
  const at::Tensor d_lower = product(product(transposed(t.inverse), t.gam * d_gated), transposed(t.inverse)).tril_(-1).neg_();
  const at::Tensor d_keys = scale_rows(t.beta, d_lower);
  const at::Tensor d_scores = (t.gam * d_p).mul_(in.scale);
  const at::Tensor from_state = scale_rows(t.grown, product(d_out, transposed(states))).mul_(in.scale);
  const at::Tensor keys_d_states = product(t.k, d_states);

  from_tiles(out.dq, from_state + product(d_scores, t.k));
  from_tiles(out.dk, product(transposed(d_scores), t.q)
                         .add_(scale_rows(t.remaining, product(values, transposed(d_states))))
                         .add_(product(d_read, transposed(states)))
                         .add_(product(d_keys + transposed(d_keys), t.k)));
  from_tiles(out.dv, d_w);
  from_tiles(out.d_beta, column_sum(d_m * t.gated_inverse) + row_sum(d_lower * t.keys));

  // A decay multiplies what crosses it: scores of a later row with an earlier column, reads of the entry state by later rows, what earlier rows leave to
  // the state behind, and the state that passes through. Summed so, never as differences, whose rounding would drown the gradient of strong decays.
  const at::Tensor pairs = (d_p * t.p + d_gated * t.gated_inverse).flip(-2).cumsum(-2).flip(-2).tril(-1);
  const at::Tensor reads = row_sum(d_read * product(t.k, states)) + row_sum(from_state * t.q);
  const at::Tensor left = (t.remaining * row_sum(values * keys_d_states)).cumsum(-1);
  const at::Tensor d_decay = row_sum(pairs) + reads.flip(-1).cumsum(-1).flip(-1) + (t.whole * (d_states * states).sum({-2, -1})).unsqueeze(-1);
  d_decay.narrow(-1, 1, kTile - 1).add_(left.narrow(-1, 0, kTile - 1));
  from_tiles(out.d_log_decay, d_decay);
  return as_states(d_state, in);
}

int64_t delta_rule_tiles_workspace_bytes(const DeltaRuleProblem& problem, bool backward) {
  const int64_t segments = std::max<int64_t>(problem.segments, 1), tiles = (problem.tokens / segments + kTile - 1) / kTile;
  const int64_t state = problem.key_dim * problem.value_dim, value_rows = kTile * problem.value_dim;
  // Of a tile: [C, C], [C, Dk], [C, Dv], and eight numbers a row.
  const auto of_tile = [&](int64_t squares, int64_t keys, int64_t values) { return kTile * (squares * kTile + keys * problem.key_dim + values * problem.value_dim + 8); };
  // Forward: while tiles follow one another, or when they are laid back. Backward: the sums over pairs, or those of dk.
  const int64_t of_head = backward ? tiles * (std::max(of_tile(19, 3, 8), of_tile(13, 9, 8)) + 2 * state) + 2 * state
                                   : std::max(tiles * of_tile(6, 2, 2) + 3 * state + 3 * value_rows, tiles * of_tile(6, 2, 3) + state);
  return 4 * segments * problem.value_heads * of_head;
}

}  // namespace oom::ops
