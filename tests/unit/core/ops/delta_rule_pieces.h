/// The token recurrence in FP64 over long inputs, on the operands' device: piece by piece, so that autograd's memory stays small.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <array>
#include <utility>

#include "delta_rule_reference.h"
#include "oom/ops/gated_delta_rule.h"

namespace oom::ops::testing {

struct DeltaRuleResults {
  static constexpr size_t kCount = 8;
  static constexpr std::array<const char*, kCount> kNames = {"out", "final state", "dq", "dk", "dv", "d log decay", "d beta", "d initial state"};
  at::Tensor out, final_state, dq, dk, dv, d_log_decay, d_beta, d_initial_state;
  at::Tensor& operator[](size_t i) { return *std::array{&out, &final_state, &dq, &dk, &dv, &d_log_decay, &d_beta, &d_initial_state}[i]; }
  const at::Tensor& operator[](size_t i) const { return const_cast<DeltaRuleResults&>(*this)[i]; }
};

/// The operands of one call and what came from behind it.
struct DeltaRulePieces {
  const DeltaRuleInputs& in;
  int64_t batch;
  std::vector<int64_t> starts;  ///< of segments, T last; empty: each sequence is one
  at::Tensor initial_state, dout, d_final_state;

  static at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

  DeltaRuleResults empty_results(at::ScalarType type) const {
    const auto zeros = [&](const at::Tensor& like) { return at::zeros(like.sizes(), like.options().dtype(type)); };
    return {zeros(in.v), zeros(initial_state), zeros(in.q), zeros(in.k), zeros(in.v), zeros(in.beta), zeros(in.beta), zeros(initial_state)};
  }

  /// Calls body(first row, rows, sequence it begins or -1, sequence it ends or -1) for each segment that holds something.
  template <typename Body>
  void for_each_segment(Body&& body) const {
    const int64_t tokens = in.q.size(0), length = tokens / batch;
    std::vector<int64_t> edges = starts;
    for (int64_t b = 0; starts.empty() && b <= batch; ++b) edges.push_back(b * length);
    for (size_t i = 0; i + 1 < edges.size(); ++i) {
      const int64_t begin = edges[i], end = edges[i + 1];
      if (begin < end) body(begin, end - begin, begin % length == 0 ? begin / length : -1, end % length == 0 ? end / length - 1 : -1);
    }
  }

  DeltaRuleResults recurrence() const {
    constexpr int64_t kPiece = 128;
    DeltaRuleResults results = empty_results(at::kDouble);
    for_each_segment([&](int64_t first, int64_t rows, int64_t begins, int64_t ends) {
      const at::Tensor zero = at::zeros_like(wide(initial_state[0]));
      std::vector<at::Tensor> states{begins >= 0 ? wide(initial_state[begins]) : zero};
      const auto piece_of = [&](int64_t from, const at::Tensor& state) {
        const int64_t count = std::min(kPiece, first + rows - from);
        const auto cut = [&](const at::Tensor& x) { return wide(x.narrow(0, from, count)).contiguous(); };
        return DeltaRuleReference{cut(in.q), cut(in.k), cut(in.v), cut(in.log_decay), cut(in.beta), state.unsqueeze(0).clone(), in.scale, {}};
      };
      {
        const at::NoGradGuard no_gradients;
        for (int64_t from = first; from < first + rows; from += kPiece) {
          const DeltaRuleReference::Result result = piece_of(from, states.back()).run();
          results.out.narrow(0, from, result.out.size(0)).copy_(result.out);
          states.push_back(result.final_state[0]);
        }
      }
      if (ends >= 0) results.final_state[ends].copy_(states.back());
      at::Tensor d_state = ends >= 0 ? wide(d_final_state[ends]) : zero;
      for (int64_t piece = static_cast<int64_t>(states.size()) - 2; piece >= 0; --piece) {
        const int64_t from = first + piece * kPiece;
        DeltaRuleReference exact = piece_of(from, states[static_cast<size_t>(piece)]);
        const std::array<at::Tensor*, 6> leaves{&exact.q, &exact.k, &exact.v, &exact.log_decay, &exact.beta, &exact.initial_state};
        for (at::Tensor* leaf : leaves) leaf->requires_grad_();
        const DeltaRuleReference::Result result = exact.run();
        const int64_t count = result.out.size(0);
        ((result.out * wide(dout.narrow(0, from, count))).sum() + (result.final_state[0] * d_state).sum()).backward();
        for (size_t i = 0; i < 5; ++i) results[2 + i].narrow(0, from, count).copy_(leaves[i]->grad());
        d_state = exact.initial_state.grad()[0];
      }
      if (begins >= 0) results.d_initial_state[begins].copy_(d_state);
    });
    return results;
  }
};

}  // namespace oom::ops::testing
