// The tensor-core kernels of the gated delta rule on a GPU, at lengths and inputs that are hard for them. Small heads and the other places are
// gated_delta_rule_test's; delta_rule_emulated_test runs the same kernels where no GPU is.
#include "delta_rule_case.h"
#include "oom/ops/gated_delta_rule.h"

namespace oom::ops {
namespace {

using namespace testing;

class GatedDeltaRuleKernelsTest : public DeltaRuleKernelTest {
 protected:
  DeltaRuleResults computed(const Operands& o) override {
    DeltaRuleResults r = unwritten(o);
    const DeltaRuleForward forward = gated_delta_rule_forward(o.in, o.segments, o.initial_state, {.final_state = true});
    r.out = forward.out;
    r.final_state = forward.final_state;
    gated_delta_rule_backward({r.dq, r.dk, r.dv, r.d_log_decay, r.d_beta, r.d_initial_state}, o.dout, o.d_final_state, o.in, o.segments, o.initial_state, {});
    return r;
  }
};

TEST_P(GatedDeltaRuleKernelsTest, AgreeWithTheTokenRecurrenceAtEveryLeftOverLength) {
  for (const int64_t length : {1, 3, 63, 64, 65, 130}) check({.batch = 2, .length = length}, std::to_string(length) + " tokens");
}

TEST_P(GatedDeltaRuleKernelsTest, AgreeForLongSequences) { check({.length = 4097, .decay_low = -0.02}, "4097 tokens"); }

TEST_P(GatedDeltaRuleKernelsTest, AgreeOverSeveralPasses) {
  // 64 value heads: a pass is 256 tiles, and this takes two.
  check({.length = 16500, .key_heads = 4, .value_heads = 64, .decay_low = -0.02}, "two passes");
  check({.length = 16500, .key_heads = 4, .value_heads = 64, .decay_low = -0.02, .starts = {0, 100, 9000, 9000, 16400, 16500}}, "documents in two passes");
}

TEST_P(GatedDeltaRuleKernelsTest, AgreeFor131072Tokens) { check({.length = 131072, .key_heads = 1, .value_heads = 1, .decay_low = -0.02}, "131072 tokens"); }

TEST_P(GatedDeltaRuleKernelsTest, AgreeHoweverManyValueHeadsAKeyHeadServes) {
  check({.length = 70, .key_heads = 3, .value_heads = 3}, "one");
  check({.length = 70, .key_heads = 1, .value_heads = 3}, "three");
  check({.length = 70, .key_heads = 2, .value_heads = 8}, "four");
}

TEST_P(GatedDeltaRuleKernelsTest, AgreeForCorrelatedKeys) {
  for (const double alike : {0.5, 0.8, 0.95})
    for (const double low : {-1e-4, -0.1, -5.0})
      check({.length = 200, .decay_low = low, .alike = alike, .eager = 2}, "alike " + std::to_string(alike) + ", log decay from " + std::to_string(low));
}

TEST_P(GatedDeltaRuleKernelsTest, AgreeForDecaysNearZeroAndNearOne) {
  check({.length = 200, .decay_low = -1e-6}, "nothing is forgotten");
  check({.length = 130, .decay_low = -60, .decay_high = -20}, "everything is forgotten");
  check({.length = 130, .decay_low = -60}, "both");
}

TEST_P(GatedDeltaRuleKernelsTest, SegmentsStartFromNothingButTheFirstOfASequence) {
  check({.length = 150, .starts = {0, 7, 70, 71, 135, 150}}, "documents");
  check({.batch = 2, .length = 75, .key_heads = 2, .value_heads = 4, .starts = {0, 0, 30, 75, 75, 139, 150, 150}}, "documents of two sequences, some empty");
}

TEST_P(GatedDeltaRuleKernelsTest, ASegmentIgnoresItsNeighbour) {
  Operands o = operands({.length = 150, .starts = {0, 87, 150}});
  const auto of_second = [&] {
    std::vector<at::Tensor> rows;
    const DeltaRuleResults results = computed(o);
    for (size_t i = 0; i < DeltaRuleResults::kCount; ++i)
      if (results[i].size(0) == 150) rows.push_back(results[i].narrow(0, 87, 63).clone());
    return rows;
  };
  const std::vector<at::Tensor> before = of_second();
  ASSERT_EQ(before.size(), 6U);
  for (const at::Tensor& t : {o.in.q, o.in.k, o.in.v, o.in.beta, o.dout}) t.narrow(0, 0, 87).mul_(-0.5);
  const std::vector<at::Tensor> after = of_second();
  for (size_t i = 0; i < before.size(); ++i) expect_identical(before[i], after[i], "result " + std::to_string(i));
}

TEST_P(GatedDeltaRuleKernelsTest, RepeatThemselvesToTheBit) {
  const Operands o = operands({.length = 1000, .key_heads = 2, .value_heads = 8});
  const DeltaRuleResults first = computed(o), second = computed(o);
  for (size_t i = 0; i < DeltaRuleResults::kCount; ++i) expect_identical(first[i], second[i], DeltaRuleResults::kNames[i]);
}

TEST_P(GatedDeltaRuleKernelsTest, RowsOffSixteenBytesAreRefused) {
  Operands o = operands({.length = 70});
  o.in.q = at::empty({70 * kDim + 1}, options()).narrow(0, 1, 70 * kDim).view({70, 1, kDim});
  EXPECT_THROW(gated_delta_rule_forward(o.in, o.segments, o.initial_state), Error);
}

INSTANTIATE_TEST_SUITE_P(Places, GatedDeltaRuleKernelsTest, ::testing::Values(Place{c10::DeviceType::CUDA, at::kBFloat16}), place_name);

}  // namespace
}  // namespace oom::ops
