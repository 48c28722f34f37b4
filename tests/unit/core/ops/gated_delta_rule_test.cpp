#include "oom/ops/gated_delta_rule.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "../counting_allocator.h"
#include "delta_rule_reference.h"
#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

/// What a case asks: sizes, where segments start (empty: each sequence is one), what decays and keys are like.
struct Case {
  const char* name;
  int64_t batch, length, key_heads, value_heads, key_dim, value_dim;
  std::vector<int64_t> starts;
  double decay_low, decay_high;  ///< log decays are uniform between
  double alike = 0;              ///< 0: independent keys; towards 1: all keys of a head point the same way
};

class GatedDeltaRuleTest : public PoisonedTest {
 protected:
  struct Operands {
    DeltaRuleInputs in;
    at::Tensor initial_state, dout, d_final_state;
    std::vector<int32_t> host_starts;
    Segments segments;
  };

  at::Tensor unit(const at::Tensor& x) { return (fp64(x) / (fp64(x).pow(2).sum(-1, true) + 1e-6).sqrt()).to(options()); }

  Operands operands(const Case& c) {
    const int64_t tokens = c.batch * c.length;
    Operands o;
    const at::Tensor common = random({1, c.key_heads, c.key_dim});
    // One projection's parts, as a layer hands them over: tokens are strided.
    const int64_t keys = c.key_heads * c.key_dim;
    const at::Tensor all = at::cat({unit(random({tokens, c.key_heads, c.key_dim})).view({tokens, keys}),
                                    unit(random({tokens, c.key_heads, c.key_dim}) * (1 - c.alike) + common * c.alike).view({tokens, keys}),
                                    random({tokens, c.value_heads * c.value_dim})}, 1);
    o.in.q = all.narrow(1, 0, keys).view({tokens, c.key_heads, c.key_dim});
    o.in.k = all.narrow(1, keys, keys).view({tokens, c.key_heads, c.key_dim});
    o.in.v = all.narrow(1, 2 * keys, c.value_heads * c.value_dim).view({tokens, c.value_heads, c.value_dim});
    const at::Tensor between = at::sigmoid(random({tokens, c.value_heads}).to(at::kFloat));
    o.in.log_decay = c.decay_low + (c.decay_high - c.decay_low) * between;
    o.in.beta = at::sigmoid(random({tokens, c.value_heads}).to(at::kFloat));
    o.in.scale = 1.0 / std::sqrt(static_cast<double>(c.key_dim));
    o.initial_state = random({c.batch, c.value_heads, c.key_dim, c.value_dim}, 0.3).to(at::kFloat);
    o.dout = random({tokens, c.value_heads, c.value_dim});
    o.d_final_state = random({c.batch, c.value_heads, c.key_dim, c.value_dim}, 0.3).to(at::kFloat);
    o.segments.sequences = c.batch;
    if (!c.starts.empty()) {
      o.host_starts.assign(c.starts.begin(), c.starts.end());
      o.segments.starts = int32(c.starts);
      o.segments.host_starts = o.host_starts;
    }
    return o;
  }

  DeltaRuleGradients empty_gradients(const Operands& o) {
    const int64_t tokens = o.in.q.size(0), keys = o.in.q.size(1) * o.in.q.size(2), values = o.in.v.size(1) * o.in.v.size(2);
    const at::Tensor all = at::empty({tokens, 2 * keys + values}, options());
    return {all.narrow(1, 0, keys).view(o.in.q.sizes()), all.narrow(1, keys, keys).view(o.in.k.sizes()), all.narrow(1, 2 * keys, values).view(o.in.v.sizes()),
            at::empty(o.in.beta.sizes(), fp32()), at::empty(o.in.beta.sizes(), fp32()), at::empty(o.initial_state.sizes(), fp32())};
  }

  /// FP32: the arithmetic's own error, and that of exponents, which are differences of FP32 sums over a tile. BF16: one rounding of each result on the
  /// CPU; on CUDA tensor cores read rounded operands.
  double tolerance(const Case& c) const {
    if (bf16()) return GetParam().device == c10::DeviceType::CUDA ? 2e-2 : 4e-3;
    return 2e-5 + std::ldexp(static_cast<double>(kDeltaRuleTile) * std::abs(c.decay_low), -24);
  }

  void check(const Case& c) {
    const Operands o = operands(c);
    DeltaRuleReference exact{fp64(o.in.q), fp64(o.in.k), fp64(o.in.v), fp64(o.in.log_decay), fp64(o.in.beta), fp64(o.initial_state), o.in.scale, c.starts};
    const std::vector<at::Tensor*> leaves{&exact.q, &exact.k, &exact.v, &exact.log_decay, &exact.beta, &exact.initial_state};
    for (at::Tensor* leaf : leaves) leaf->requires_grad_();
    const DeltaRuleReference::Result reference = exact.run();
    ((reference.out * fp64(o.dout)).sum() + (reference.final_state * fp64(o.d_final_state)).sum()).backward();

    for (const bool save : {false, true}) {
      const DeltaRuleForward forward = gated_delta_rule_forward(o.in, o.segments, o.initial_state, {.final_state = true, .saved = save});
      const std::string what = std::string(c.name) + (save ? ", saved, " : ", ");
      expect_near_overall(forward.out, reference.out, tolerance(c), what + "out");
      expect_near_overall(forward.final_state, reference.final_state, tolerance(c), what + "final state");
      const DeltaRuleGradients gradients = empty_gradients(o);
      gated_delta_rule_backward(gradients, o.dout, o.d_final_state, o.in, o.segments, o.initial_state, forward.saved);
      expect_near_overall(gradients.dq, exact.q.grad(), tolerance(c), what + "dq");
      expect_near_overall(gradients.dk, exact.k.grad(), tolerance(c), what + "dk");
      expect_near_overall(gradients.dv, exact.v.grad(), tolerance(c), what + "dv");
      expect_near_overall(gradients.d_log_decay, exact.log_decay.grad(), tolerance(c), what + "d log decay");
      expect_near_overall(gradients.d_beta, exact.beta.grad(), tolerance(c), what + "d beta");
      expect_near_overall(gradients.d_initial_state, exact.initial_state.grad(), tolerance(c), what + "d initial state");
    }
  }
};

TEST_P(GatedDeltaRuleTest, AgreesWithTheTokenRecurrenceAtEveryLeftOverLength) {
  for (const int64_t length : {1, 3, 63, 64, 65, 130}) check({"lengths", 2, length, 2, 4, 16, 32, {}, -1.0, -0.01});
}

TEST_P(GatedDeltaRuleTest, AgreesWhateverTheHeads) {
  check({"one value head a key head", 1, 70, 3, 3, 16, 16, {}, -1.0, -0.01});
  check({"four value heads a key head", 1, 70, 2, 8, 16, 16, {}, -1.0, -0.01});
  check({"128 wide", 1, 130, 1, 2, 128, 128, {}, -1.0, -0.01});
}

TEST_P(GatedDeltaRuleTest, AgreesForDecaysNearZeroAndNearOne) {
  check({"everything is forgotten", 1, 130, 1, 2, 32, 32, {}, -60.0, -20.0});
  check({"nothing is forgotten", 1, 200, 1, 2, 32, 32, {}, -1e-6, 0.0});
  check({"both", 1, 130, 1, 2, 32, 32, {}, -60.0, 0.0});
}

TEST_P(GatedDeltaRuleTest, AgreesForCorrelatedKeys) { check({"keys alike", 1, 130, 1, 2, 32, 32, {}, -0.1, -0.001, 0.9}); }

TEST_P(GatedDeltaRuleTest, SegmentsStartFromNothingButTheFirstOfASequence) {
  check({"documents", 1, 150, 2, 4, 16, 16, {0, 7, 70, 71, 135, 150}, -0.5, -0.01});
  check({"documents of two sequences, some empty", 2, 75, 2, 4, 16, 16, {0, 0, 30, 75, 75, 139, 150, 150}, -0.5, -0.01});
}

TEST_P(GatedDeltaRuleTest, ASegmentIgnoresItsNeighbour) {
  const Case c{"", 1, 100, 1, 2, 16, 16, {0, 37, 100}, -0.5, -0.01};
  Operands o = operands(c);
  const auto of_second = [&] {
    const DeltaRuleForward forward = gated_delta_rule_forward(o.in, o.segments, {}, {.final_state = true});
    const DeltaRuleGradients g = empty_gradients(o);
    gated_delta_rule_backward(g, o.dout, {}, o.in, o.segments, {}, {});
    std::vector<at::Tensor> rows{forward.final_state};
    for (const at::Tensor& t : {forward.out, g.dq, g.dk, g.dv, g.d_log_decay, g.d_beta}) rows.push_back(t.narrow(0, 37, 63).clone());
    return rows;
  };
  const std::vector<at::Tensor> before = of_second();
  for (const at::Tensor& t : {o.in.q, o.in.k, o.in.v, o.in.beta, o.dout}) t.narrow(0, 0, 37).mul_(-0.5);
  const std::vector<at::Tensor> after = of_second();
  for (size_t i = 0; i < before.size(); ++i) expect_identical(before[i], after[i], "result " + std::to_string(i));
}

TEST_P(GatedDeltaRuleTest, SlicesWithTheirStatesAreTheWhole) {
  const Case c{"", 2, 192, 2, 4, 16, 32, {}, -0.5, -0.01};
  const Operands o = operands(c);
  const DeltaRuleForward whole = gated_delta_rule_forward(o.in, o.segments, o.initial_state, {.final_state = true});
  const DeltaRuleGradients whole_gradients = empty_gradients(o);
  gated_delta_rule_backward(whole_gradients, o.dout, o.d_final_state, o.in, o.segments, o.initial_state, {});

  const std::vector<std::pair<int64_t, int64_t>> slices{{0, 64}, {64, 64}, {128, 64}};
  const auto rows = [&](const at::Tensor& t, size_t i) {
    std::vector<int64_t> shape = t.sizes().vec();
    shape[0] = c.batch * slices[i].second;
    return t.unflatten(0, {c.batch, c.length}).narrow(1, slices[i].first, slices[i].second).reshape(shape).contiguous();
  };
  const auto inputs = [&](size_t i) {
    return DeltaRuleInputs{rows(o.in.q, i), rows(o.in.k, i), rows(o.in.v, i), rows(o.in.log_decay, i), rows(o.in.beta, i), o.in.scale};
  };
  std::vector<at::Tensor> entry{o.initial_state};
  for (size_t i = 0; i < slices.size(); ++i) {
    const DeltaRuleForward part = gated_delta_rule_forward(inputs(i), o.segments, entry.back(), {.final_state = true});
    expect_near(part.out, fp64(rows(whole.out, i)), bf16() ? 8e-3 : 1e-6, "out");
    entry.push_back(part.final_state);
  }
  expect_near(entry.back(), fp64(whole.final_state), bf16() ? 8e-3 : 1e-6, "final state");
  at::Tensor d_state = o.d_final_state;
  for (size_t i = slices.size(); i-- > 0;) {
    Operands part{inputs(i), entry[i], rows(o.dout, i), d_state, {}, o.segments};
    const DeltaRuleGradients g = empty_gradients(part);
    gated_delta_rule_backward(g, part.dout, d_state, part.in, o.segments, entry[i], {});
    const double slack = bf16() ? 8e-3 : 1e-6;
    expect_near(g.dq, fp64(rows(whole_gradients.dq, i)), slack, "dq");
    expect_near(g.dk, fp64(rows(whole_gradients.dk, i)), slack, "dk");
    expect_near(g.dv, fp64(rows(whole_gradients.dv, i)), slack, "dv");
    expect_near(g.d_log_decay, fp64(rows(whole_gradients.d_log_decay, i)), 10 * slack, "d log decay");
    expect_near(g.d_beta, fp64(rows(whole_gradients.d_beta, i)), slack, "d beta");
    d_state = g.d_initial_state;
  }
  expect_near(d_state, fp64(whole_gradients.d_initial_state), bf16() ? 8e-3 : 1e-6, "d initial state");
}

TEST_P(GatedDeltaRuleTest, MissingStatesAreZeros) {
  const Operands o = operands({"", 2, 70, 1, 2, 16, 16, {}, -0.5, -0.01});
  const at::Tensor zero = at::zeros_like(o.initial_state);
  expect_identical(gated_delta_rule_forward(o.in, o.segments, {}).out, gated_delta_rule_forward(o.in, o.segments, zero).out, "out");
  const DeltaRuleGradients with = empty_gradients(o);
  DeltaRuleGradients without = empty_gradients(o);
  without.d_initial_state.reset();
  gated_delta_rule_backward(with, o.dout, zero, o.in, o.segments, zero, {});
  gated_delta_rule_backward(without, o.dout, {}, o.in, o.segments, {}, {});
  expect_identical(with.dk, without.dk, "dk");
  expect_identical(with.d_log_decay, without.d_log_decay, "d log decay");
}

TEST_P(GatedDeltaRuleTest, NoTokensHandTheStateOn) {
  const Operands o = operands({"", 2, 0, 1, 2, 16, 16, {}, -0.5, -0.01});
  expect_identical(gated_delta_rule_forward(o.in, o.segments, o.initial_state, {.final_state = true}).final_state, o.initial_state, "state");
  const DeltaRuleGradients g = empty_gradients(o);
  gated_delta_rule_backward(g, o.dout, o.d_final_state, o.in, o.segments, o.initial_state, {});
  expect_identical(g.d_initial_state, o.d_final_state, "its gradient");
}

TEST_P(GatedDeltaRuleTest, WrongOperandsAreRefused) {
  const Operands o = operands({"", 2, 70, 2, 4, 16, 16, {}, -0.5, -0.01});
  const auto with = [&](auto change) {
    DeltaRuleInputs in = o.in;
    change(in);
    return in;
  };
  EXPECT_THROW(gated_delta_rule_forward(with([&](DeltaRuleInputs& in) { in.v = random({140, 3, 16}); }), o.segments, {}), Error) << "3 value heads";
  EXPECT_THROW(gated_delta_rule_forward(with([&](DeltaRuleInputs& in) { in.k = random({140, 2, 8}); }), o.segments, {}), Error) << "narrow keys";
  EXPECT_THROW(gated_delta_rule_forward(with([&](DeltaRuleInputs& in) { in.beta = in.beta.narrow(0, 0, 139); }), o.segments, {}), Error) << "short beta";
  EXPECT_THROW(gated_delta_rule_forward(o.in, {.sequences = 3}, {}), Error) << "140 tokens in 3 sequences";
  EXPECT_THROW(gated_delta_rule_forward(o.in, o.segments, o.initial_state.narrow(0, 0, 1)), Error) << "state of one sequence";
  const std::vector<int32_t> crossing{0, 80, 140};
  EXPECT_THROW(gated_delta_rule_forward(o.in, {2, int32({0, 80, 140}), crossing}, {}), Error) << "a segment crosses into the second sequence";
}

class GatedDeltaRuleMemory : public GatedDeltaRuleTest {};

TEST_P(GatedDeltaRuleMemory, IsWhatIsTold) {
  c10::SetCPUAllocator(&oom::testing::counter(), /*priority=*/255);
  for (const auto& [key_dim, value_dim] : {std::pair<int64_t, int64_t>{16, 32}, {32, 16}, {128, 128}}) {
    for (const int64_t length : {256, 200}) {
      const Operands o = operands({"", 2, length, 2, 4, key_dim, value_dim, {}, -0.5, -0.01});
      const DeltaRuleProblem problem{.device = c10::DeviceType::CPU, .dtype = at::kFloat, .tokens = 2 * length, .segments = 2, .key_heads = 2, .value_heads = 4,
                                     .key_dim = key_dim, .value_dim = value_dim};
      const auto expect_close = [&](bool backward, int64_t measured) {
        const int64_t told = gated_delta_rule_workspace_bytes(problem, backward);
        EXPECT_GE(told, measured) << key_dim << " " << value_dim << " " << length << (backward ? " backward" : " forward");
        EXPECT_LE(told, measured + measured / 10) << key_dim << " " << value_dim << " " << length << (backward ? " backward" : " forward");
      };
      DeltaRuleForward forward;
      const int64_t going = oom::testing::measure([&] { forward = gated_delta_rule_forward(o.in, o.segments, o.initial_state, {.final_state = true}); }).workspace_bytes;
      expect_close(false, going);
      const DeltaRuleGradients g = empty_gradients(o);
      expect_close(true, oom::testing::measure([&] { gated_delta_rule_backward(g, o.dout, o.d_final_state, o.in, o.segments, o.initial_state, {}); }).workspace_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, GatedDeltaRuleMemory, ::testing::Values(Place{c10::DeviceType::CPU, at::kFloat}), place_name);
INSTANTIATE_TEST_SUITE_P(Places, GatedDeltaRuleTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
