/// Hard inputs for the gated delta rule's kernels, 128 x 128 states, and what their results are held to.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>

#include "delta_rule_pieces.h"
#include "delta_rule_rounded.h"
#include "poisoned.h"

namespace oom::ops::testing {

struct DeltaRuleCase {
  int64_t batch = 1, length = 64, key_heads = 1, value_heads = 2;
  double decay_low = -0.1, decay_high = 0;  ///< log decays are uniform between
  double alike = 0;                         ///< towards 1: all keys of a head point the same way
  double eager = 0;                         ///< added to what beta is the sigmoid of
  std::vector<int64_t> starts = {};
};

class DeltaRuleKernelTest : public PoisonedTest {
 protected:
  static constexpr int64_t kDim = 128;

  struct Operands {
    DeltaRuleInputs in;
    at::Tensor initial_state, dout, d_final_state;
    std::vector<int32_t> host_starts;
    Segments segments;
  };

  at::Tensor unit(const at::Tensor& x) { return (fp64(x) / (fp64(x).pow(2).sum(-1, true) + 1e-6).sqrt()).to(options()); }

  Operands operands(const DeltaRuleCase& c) {
    const int64_t tokens = c.batch * c.length, keys = c.key_heads * kDim, values = c.value_heads * kDim;
    Operands o;
    const at::Tensor common = random({1, c.key_heads, kDim});
    const at::Tensor all = at::cat({unit(random({tokens, c.key_heads, kDim})).view({tokens, keys}),
                                    unit(random({tokens, c.key_heads, kDim}) * (1 - c.alike) + common * c.alike).view({tokens, keys}),
                                    random({tokens, values})}, 1);
    o.in.q = all.narrow(1, 0, keys).view({tokens, c.key_heads, kDim});
    o.in.k = all.narrow(1, keys, keys).view({tokens, c.key_heads, kDim});
    o.in.v = all.narrow(1, 2 * keys, values).view({tokens, c.value_heads, kDim});
    o.in.log_decay = c.decay_low + (c.decay_high - c.decay_low) * at::sigmoid(random({tokens, c.value_heads}).to(at::kFloat));
    o.in.beta = at::sigmoid(random({tokens, c.value_heads}).to(at::kFloat) + c.eager);
    o.in.scale = 1.0 / std::sqrt(static_cast<double>(kDim));
    o.initial_state = random({c.batch, c.value_heads, kDim, kDim}, 0.3).to(at::kFloat);
    o.dout = random({tokens, c.value_heads, kDim});
    o.d_final_state = random({c.batch, c.value_heads, kDim, kDim}, 0.3).to(at::kFloat);
    o.segments.sequences = c.batch;
    if (!c.starts.empty()) {
      o.host_starts.assign(c.starts.begin(), c.starts.end());
      o.segments.starts = int32(c.starts);
      o.segments.host_starts = o.host_starts;
    }
    return o;
  }

  /// Unwritten results; gradients of one projection's parts, as a layer takes them.
  DeltaRuleResults unwritten(const Operands& o) const {
    const int64_t tokens = o.in.q.size(0), keys = o.in.q.size(1) * kDim, values = o.in.v.size(1) * kDim;
    const at::Tensor all = at::empty({tokens, 2 * keys + values}, options());
    return {at::empty(o.in.v.sizes(), options()), at::empty(o.initial_state.sizes(), fp32()), all.narrow(1, 0, keys).view(o.in.q.sizes()),
            all.narrow(1, keys, keys).view(o.in.k.sizes()), all.narrow(1, 2 * keys, values).view(o.in.v.sizes()), at::empty(o.in.beta.sizes(), fp32()),
            at::empty(o.in.beta.sizes(), fp32()), at::empty(o.initial_state.sizes(), fp32())};
  }
  /// What the kernels make of them, forward and backward.
  virtual DeltaRuleResults computed(const Operands& o) = 0;

  static double error(const at::Tensor& actual, const at::Tensor& exact) {
    return ((actual.to(at::kDouble).to(exact.device()) - exact).norm() / exact.norm()).item<double>();
  }

  /// Each result within 2e-2 of the token recurrence in FP64. How near FP32 is whose products read BF16 is remembered for TearDown.
  void check(const DeltaRuleCase& c, const std::string& what) {
    const Operands o = operands(c);
    const DeltaRulePieces reference{o.in, c.batch, c.starts, o.initial_state, o.dout, o.d_final_state};
    const DeltaRuleResults exact = reference.recurrence(), rounded = delta_rule_rounded(reference), ours = computed(o);
    for (size_t i = 0; i < DeltaRuleResults::kCount; ++i) {
      const double distance = error(ours[i], exact[i]), unavoidable = error(rounded[i].to(ours[i].scalar_type()), exact[i]);
      EXPECT_LE(distance, 2e-2) << what << " " << DeltaRuleResults::kNames[i];
      squares_[i] += distance * distance;
      rounded_squares_[i] += unavoidable * unavoidable;
    }
  }

  /// Over a test's cases no result is further from exact than rounding alone makes it, up to how differently two orders of rounding fall: of single
  /// cases of a head or two the decay's gradient, where one number reaches all tokens, says too little.
  void TearDown() override {
    for (size_t i = 0; i < DeltaRuleResults::kCount; ++i)
      EXPECT_LE(std::sqrt(squares_[i]), 1.5 * std::sqrt(rounded_squares_[i])) << DeltaRuleResults::kNames[i] << " of all cases";
    PoisonedTest::TearDown();
  }

 private:
  std::array<double, DeltaRuleResults::kCount> squares_{}, rounded_squares_{};
};

}  // namespace oom::ops::testing
