#include "oom/ops/linear_cross_entropy.h"

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "operand.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::expect_identical;
using testing::expect_near;
using testing::fp64;

class LinearCrossEntropyTest : public testing::PlacedTest {
 protected:
  static constexpr int64_t kTokens = 53, kHidden = 32, kVocabulary = 101;
  void expect_close(const at::Tensor& actual, const at::Tensor& reference, const std::string& what) const {
    if (bf16())
      testing::expect_near_overall(actual, reference, 3e-3, what);
    else
      expect_near(actual, reference, 5e-6, what);
  }
  std::vector<int64_t> targets() const {
    std::vector<int64_t> result;
    for (int64_t token = 0; token < kTokens; ++token) result.push_back(token % 6 == 2 ? kIgnoredTarget : token * 7 % kVocabulary);
    return result;
  }
  static int64_t valid(const std::vector<int64_t>& targets) {
    int64_t count = 0;
    for (const int64_t target : targets) count += target != kIgnoredTarget;
    return count;
  }
};

TEST_P(LinearCrossEntropyTest, AgreesWithAutogradForEveryChunk) {
  const std::vector<int64_t> labels = targets();
  const at::Tensor h = random({kTokens, kHidden}), weight = random({kVocabulary, kHidden}, 0.5), on_device = int32(labels);
  for (const double cap : {0.0, 3.0}) {
    at::Tensor h64 = fp64(h).requires_grad_(), weight64 = fp64(weight).requires_grad_();
    at::Tensor logits = at::matmul(h64, weight64.t());
    if (cap > 0) logits = at::tanh(logits / cap) * cap;
    const at::Tensor log_p = at::log_softmax(logits, -1);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t token = 0; token < kTokens; ++token)
      if (labels[token] != kIgnoredTarget) loss = loss - log_p[token][labels[token]];
    (loss / static_cast<double>(valid(labels))).backward();

    for (const int64_t chunk : {1, 7, 53, 64}) {
      const LinearCrossEntropySettings settings{.valid_targets = valid(labels), .chunk_tokens = chunk, .soft_cap = cap};
      const at::Tensor sink = at::full({kVocabulary, kHidden}, std::numeric_limits<double>::quiet_NaN(), options().dtype(at::kFloat));
      const LinearCrossEntropy result = linear_cross_entropy(h, weight, on_device, settings, {sink, false});
      EXPECT_EQ(result.loss_sum.scalar_type(), at::kDouble);
      EXPECT_NEAR(result.loss_sum.item<double>(), loss.item<double>(), 1e-6 * loss.item<double>()) << "chunk " << chunk << " cap " << cap;
      // In BF16 the logit gradient is rounded before both products, dh once more.
      expect_close(result.dh, h64.grad(), cat("dh, chunk ", chunk, " cap ", cap));
      expect_close(sink, weight64.grad(), cat("dW, chunk ", chunk, " cap ", cap));
      linear_cross_entropy(h, weight, on_device, settings, {sink, true});
      expect_close(sink, weight64.grad() * 2, cat("dW added, chunk ", chunk, " cap ", cap));
      expect_identical(linear_cross_entropy_loss(h, weight, on_device, settings), result.loss_sum, "the loss alone");
    }
  }
}

TEST_P(LinearCrossEntropyTest, NothingCounts) {
  const at::Tensor h = random({5, kHidden}), weight = random({kVocabulary, kHidden}), ignored = int32(std::vector<int64_t>(5, kIgnoredTarget));
  const at::Tensor sink = at::full({kVocabulary, kHidden}, 2, options().dtype(at::kFloat));
  const LinearCrossEntropy result = linear_cross_entropy(h, weight, ignored, {.valid_targets = 0, .chunk_tokens = 2}, {sink, true});
  EXPECT_EQ(result.loss_sum.item<double>(), 0);
  expect_identical(result.dh, at::zeros_like(h), "dh");
  expect_identical(sink, at::full_like(sink, 2), "dW");
}

TEST_P(LinearCrossEntropyTest, NoTokens) {
  const at::Tensor h = random({0, kHidden}), weight = random({kVocabulary, kHidden}), none = int32({});
  const at::Tensor sink = at::full({kVocabulary, kHidden}, 2, options().dtype(at::kFloat));
  EXPECT_EQ(linear_cross_entropy(h, weight, none, {.valid_targets = 9}, {sink, true}).loss_sum.item<double>(), 0);
  expect_identical(sink, at::full_like(sink, 2), "dW added");
  linear_cross_entropy(h, weight, none, {.valid_targets = 9}, {sink, false});
  expect_identical(sink, at::zeros_like(sink), "dW overwritten");
}

TEST_P(LinearCrossEntropyTest, WrongOperandsAreRefused) {
  const at::Tensor h = random({3, kHidden}), weight = random({kVocabulary, kHidden});
  EXPECT_THROW(linear_cross_entropy_loss(h, weight, int32({1, 2}), {}), Error);
  EXPECT_THROW(linear_cross_entropy_loss(h, weight, int32({1, 2, 3}), {.chunk_tokens = 0}), Error);
}

INSTANTIATE_TEST_SUITE_P(Places, LinearCrossEntropyTest, all_places(), testing::place_name);

}  // namespace
}  // namespace oom::ops
