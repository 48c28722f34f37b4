// An owner's work on what arrived, against the same experts over the same tokens without any exchange.
#include "ep/row_work.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <oom/ops/moe.h>

#include <vector>

namespace oom::ep {
namespace {

constexpr int64_t kTokens = 11, kTopK = 2, kExperts = 4, kHidden = 8, kWidth = 6;
constexpr int64_t kRows = kTokens * kTopK;

class RowWork : public ::testing::Test {
 protected:
  RowWork() : memory_(/*cuda=*/false), inputs_{memory_, 0, layout_}, gradients_{memory_, 1, layout_} {
    at::manual_seed(3);
    memory_.resize(2);
    for (std::vector<std::byte>& bytes : storage_) bytes.resize(layout_.bytes());
    for (int i = 0; i < 2; ++i) memory_.bind(i, storage_[i].data(), -1);
    x_ = at::randn({kTokens, kHidden});
    dy_ = at::randn({kTokens, kHidden});
    weights_ = {at::randn({kExperts, 2 * kWidth, kHidden}), at::randn({kExperts, kHidden, kWidth}), ops::GatedActivation::kSilu};
    // Expert 2 gets nothing.
    routing_.indices = at::stack({at::arange(kTokens).remainder(2), at::full({kTokens}, 3, at::kLong)}, 1).to(at::kInt).contiguous();
    routing_.weights = at::rand({kTokens, kTopK});
    const ops::Permutation sorted = ops::make_permutation(routing_.indices, kExperts);
    order_ = {sorted.token_of, sorted.row_of};
  }
  static ops::ExpertSinks sinks_of(float value, bool accumulate) {
    return {.gate_up = {at::full({kExperts, 2 * kWidth, kHidden}, value), accumulate}, .down = {at::full({kExperts, kHidden, kWidth}, value), accumulate}};
  }

  const ParcelLayout layout_{.rows = kRows, .hidden = kHidden, .type = at::kFloat};
  std::vector<std::byte> storage_[2];
  StepMemory memory_;
  Parcels inputs_, gradients_;
  at::Tensor x_, dy_;
  ops::ExpertWeights weights_;
  ops::Routing routing_;
  ChunkOrder order_;
};

TEST_F(RowWork, ForwardKeepsTheOrderOfArrival) {
  pack_inputs(inputs_, x_, routing_.indices, order_, kExperts);
  // Two sources' parcels: the second half arrives first.
  const at::Tensor arrival = at::cat({at::arange(kRows / 2, kRows), at::arange(kRows / 2)});
  inputs_.rows(kRows).copy_(inputs_.rows(kRows).index_select(0, arrival));
  inputs_.experts(kRows).copy_(inputs_.experts(kRows).index_select(0, arrival));
  run_forward(inputs_, kRows, weights_);
  at::Tensor home = at::empty({kRows, kHidden});
  home.index_copy_(0, arrival, inputs_.rows(kRows));
  const at::Tensor expected = ops::moe_forward(x_, routing_, weights_, false).y;
  EXPECT_TRUE(at::equal(ops::combine(home, order_.row_of, {.weights = routing_.weights}), expected));
}

TEST_F(RowWork, BackwardIsThatOfTheWholeLayer) {
  ops::MoeForward forward = ops::moe_forward(x_, routing_, weights_, true);
  const ops::ExpertSinks expected_sinks = sinks_of(0, false), sinks = sinks_of(7, false);
  const ops::MoeBackward expected = ops::moe_backward(dy_, x_, routing_, forward.permutation, forward.z, weights_, expected_sinks);
  pack_inputs(inputs_, x_, routing_.indices, order_, kExperts);
  pack_gradients(gradients_, dy_, routing_.weights, order_);
  const OwnerRows rows = make_rows(inputs_, kRows, weights_);
  run_backward(rows, gradients_, weights_, sinks);
  EXPECT_TRUE(at::equal(ops::combine(gradients_.rows(kRows), order_.row_of), expected.dx));
  EXPECT_TRUE(at::equal(ops::rows_to_choices(gradients_.weights(kRows).view(-1), order_.row_of), expected.d_weights));
  EXPECT_TRUE(at::equal(sinks.gate_up.tensor, expected_sinks.gate_up.tensor));
  EXPECT_TRUE(at::equal(sinks.down.tensor, expected_sinks.down.tensor));
  EXPECT_EQ(sinks.down.tensor.select(0, 2).abs().max().item<float>(), 0) << "an expert without tokens";
}

TEST_F(RowWork, KeptRowsAreThoseMadeAgain) {
  pack_inputs(inputs_, x_, routing_.indices, order_, kExperts);
  const OwnerRows again = make_rows(inputs_, kRows, weights_);
  OwnerRows kept;
  run_forward(inputs_, kRows, weights_, &kept);
  EXPECT_TRUE(at::equal(kept.x, again.x));
  EXPECT_TRUE(at::equal(kept.z, again.z));
  EXPECT_TRUE(at::equal(kept.ends, again.ends));
  EXPECT_TRUE(at::equal(kept.token_of, again.token_of));
  EXPECT_TRUE(at::equal(kept.row_of, again.row_of));
}

TEST_F(RowWork, NoRowsLeaveZeroOrWhatWasThere) {
  const ops::ExpertSinks first = sinks_of(7, false), later = sinks_of(7, true);
  run_backward(make_rows(inputs_, 0, weights_), gradients_, weights_, first);
  run_backward(make_rows(inputs_, 0, weights_), gradients_, weights_, later);
  EXPECT_EQ(first.gate_up.tensor.abs().max().item<float>(), 0);
  EXPECT_EQ(first.down.tensor.abs().max().item<float>(), 0);
  EXPECT_EQ(later.gate_up.tensor.min().item<float>(), 7);
  EXPECT_EQ(later.down.tensor.min().item<float>(), 7);
}

// Experts are numbered within their owner.
TEST_F(RowWork, PackNumbersExpertsWithinTheirOwner) {
  pack_inputs(inputs_, x_, routing_.indices, order_, 2);
  const at::Tensor numbers = inputs_.experts(kRows).view(-1);
  for (int64_t choice = 0; choice < kRows; ++choice) {
    const int64_t row = order_.row_of.view(-1)[choice].item<int>();
    EXPECT_EQ(numbers[row].item<int>(), routing_.indices.view(-1)[choice].item<int>() % 2);
  }
}

}  // namespace
}  // namespace oom::ep
