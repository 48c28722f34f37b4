/// The gated delta rule in tile form in FP32, with the operands of every product rounded to BF16: the error that tensor cores cannot avoid.
#pragma once

#include <ATen/ops/cumsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include "delta_rule_pieces.h"

namespace oom::ops::testing {

/// Names as in gated_delta_rule_tiles.cpp: one tile of all value heads, [Hv, ..].
struct RoundedTile {
  static at::Tensor rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }
  static at::Tensor product(const at::Tensor& a, const at::Tensor& b) { return at::matmul(rounded(a), rounded(b)); }
  static at::Tensor t(const at::Tensor& x) { return x.transpose(-2, -1); }

  at::Tensor q, k, v, dout, beta, sums, from_start, to_end, gam, keys, queries, inverse, gated, m, p;
  double scale;

  RoundedTile(const DeltaRulePieces& all, int64_t from, int64_t count) : scale(all.in.scale) {
    const int64_t repeat = all.in.v.size(1) / all.in.k.size(1);
    const auto heads = [&](const at::Tensor& x) { return x.narrow(0, from, count).to(at::kFloat).transpose(0, 1).contiguous(); };
    q = heads(all.in.q).repeat_interleave(repeat, 0);
    k = heads(all.in.k).repeat_interleave(repeat, 0);
    v = heads(all.in.v);
    dout = heads(all.dout);
    beta = heads(all.in.beta).unsqueeze(-1);
    sums = at::cumsum(heads(all.in.log_decay), 1).unsqueeze(-1);
    from_start = sums.exp();
    to_end = (sums.narrow(1, count - 1, 1) - sums).exp();
    const at::Tensor difference = sums - t(sums), lower = at::ones({count, count}, sums.options()).tril();
    gam = at::where(lower.to(at::kBool), difference.clamp_max(0), at::zeros_like(difference)).exp() * lower;
    keys = product(k, t(k));
    queries = product(q, t(k));
    const at::Tensor identity = at::eye(count, sums.options()).expand(gam.sizes());
    inverse = at::linalg_solve_triangular(identity + (beta * keys).tril(-1), identity, false, true, true);
    gated = gam * inverse;
    m = gated * t(beta);
    p = scale * gam * queries;
  }
};

inline DeltaRuleResults delta_rule_rounded(const DeltaRulePieces& all) {
  constexpr int64_t kTile = 64;
  const auto product = RoundedTile::product;
  const auto t = RoundedTile::t;
  DeltaRuleResults results = all.empty_results(at::kFloat);
  all.for_each_segment([&](int64_t first, int64_t rows, int64_t begins, int64_t ends) {
    const at::Tensor zero = at::zeros_like(all.initial_state[0]);
    std::vector<at::Tensor> states{begins >= 0 ? all.initial_state[begins] : zero};
    const auto count_of = [&](int64_t from) { return std::min(kTile, first + rows - from); };
    for (int64_t from = first; from < first + rows; from += kTile) {
      const RoundedTile x(all, from, count_of(from));
      const at::Tensor& s0 = states.back();
      const at::Tensor values = product(x.m, x.v - x.from_start * product(x.k, s0));
      results.out.narrow(0, from, count_of(from)).copy_((x.scale * x.from_start * product(x.q, s0) + product(x.p, values)).transpose(0, 1));
      states.push_back(x.from_start.narrow(1, count_of(from) - 1, 1) * s0 + product(t(x.k), x.to_end * values));
    }
    if (ends >= 0) results.final_state[ends].copy_(states.back());
    at::Tensor ds = ends >= 0 ? all.d_final_state[ends] : zero;
    for (int64_t tile = static_cast<int64_t>(states.size()) - 2; tile >= 0; --tile) {
      const int64_t from = first + tile * kTile, count = count_of(from);
      const RoundedTile x(all, from, count);
      const at::Tensor& s0 = states[static_cast<size_t>(tile)];
      const at::Tensor whole = x.from_start.narrow(1, count - 1, 1), u = product(x.k, s0), w = x.v - x.from_start * u, values = product(x.m, w);
      const at::Tensor key_ds = product(x.k, ds), d_values = product(t(x.p), x.dout) + x.to_end * key_ds, dw = product(t(x.m), d_values);
      const at::Tensor du = -x.from_start * dw, d_p = product(x.dout, t(values)).tril(), d_scores = x.scale * x.gam * d_p;
      const at::Tensor d_m = product(d_values, t(w)).tril(), d_gated = d_m * t(x.beta);
      const at::Tensor d_l = -product(product(t(x.inverse), x.gam * d_gated), t(x.inverse)).tril(-1), d_keys = x.beta * d_l;
      const at::Tensor out_state = x.scale * x.from_start * product(x.dout, t(s0));
      const at::Tensor dq = out_state + product(d_scores, x.k);
      const at::Tensor dk = product(t(d_scores), x.q) + x.to_end * product(values, t(ds)) + product(du, t(s0)) + product(d_keys + t(d_keys), x.k);
      const at::Tensor weighed = d_p * x.p + d_gated * x.gated, r = (x.to_end * values * key_ds).sum(-1);
      at::Tensor dg = weighed.sum(-1) - weighed.sum(-2) + (du * u).sum(-1) + (out_state * x.q).sum(-1) - r;
      dg.select(1, count - 1).add_(r.sum(1) + (whole * ds * s0).sum({1, 2}));
      const auto rows_of = [&](const at::Tensor& x_heads) { return x_heads.transpose(0, 1); };
      const auto by_key_head = [&](const at::Tensor& heads, const at::Tensor& like) {
        return rows_of(heads).reshape({count, like.size(1), -1, like.size(2)}).sum(2);
      };
      results.dq.narrow(0, from, count).copy_(by_key_head(dq, all.in.q));
      results.dk.narrow(0, from, count).copy_(by_key_head(dk, all.in.k));
      results.dv.narrow(0, from, count).copy_(rows_of(dw));
      results.d_log_decay.narrow(0, from, count).copy_(rows_of(dg.flip(1).cumsum(1).flip(1)));
      results.d_beta.narrow(0, from, count).copy_(rows_of((d_m * x.gated).sum(-2) + (d_l * x.keys).sum(-1)));
      ds = whole * ds + product(t(x.q), x.scale * x.from_start * x.dout) + product(t(x.k), du);
    }
    if (begins >= 0) results.d_initial_state[begins].copy_(ds);
  });
  return results;
}

}  // namespace oom::ops::testing
