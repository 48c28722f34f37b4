/// The gated delta rule token by token in FP64, whose gradients autograd makes: what the tile form is held to.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "operand.h"

namespace oom::ops::testing {

/// FP64 operands of one batch: q, k [T,Hk,Dk], v [T,Hv,Dv], log_decay and beta [T,Hv], initial_state [B,Hv,Dk,Dv].
struct DeltaRuleReference {
  at::Tensor q, k, v, log_decay, beta, initial_state;
  double scale = 1.0;
  std::vector<int64_t> starts;  ///< of segments, T last

  struct Result {
    at::Tensor out, final_state;
  };
  Result run() const {
    const int64_t tokens = v.size(0), batch = initial_state.size(0), length = tokens / batch, repeat = v.size(1) / k.size(1);
    const at::Tensor keys = k.repeat_interleave(repeat, 1), queries = q.repeat_interleave(repeat, 1);
    std::vector<at::Tensor> rows, last;
    at::Tensor state;
    size_t segment = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      bool starts_here = false;
      while (segment < starts.size() && starts[segment] == t) starts_here = true, ++segment;
      if (t % length == 0)
        state = initial_state[t / length];
      else if (starts_here)
        state = at::zeros_like(initial_state[0]);
      state = at::exp(log_decay[t]).view({-1, 1, 1}) * state;
      const at::Tensor read = (state * keys[t].unsqueeze(2)).sum(1);
      const at::Tensor delta = beta[t].unsqueeze(1) * (v[t] - read);
      state = state + keys[t].unsqueeze(2) * delta.unsqueeze(1);
      rows.push_back((state * queries[t].unsqueeze(2)).sum(1) * scale);
      if (t % length == length - 1) last.push_back(state);
    }
    return {at::stack(rows), at::stack(last)};
  }
};

}  // namespace oom::ops::testing
