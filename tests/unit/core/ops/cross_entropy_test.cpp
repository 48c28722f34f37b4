#include "oom/ops/cross_entropy.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tanh.h>

#include <limits>

#include "oom/ops/reduce.h"
#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class CrossEntropyTest : public PoisonedTest {
 protected:
  struct Reference {
    at::Tensor losses, gradient;
  };
  static Reference reference(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropySettings& settings) {
    at::Tensor x = fp64(logits).requires_grad_();
    const at::Tensor z = settings.soft_cap > 0 ? at::tanh(x / settings.soft_cap) * settings.soft_cap : x;
    const at::Tensor losses = at::cross_entropy_loss(z, targets.to(at::kCPU).to(at::kLong), {}, 0 /* no reduction */, -100);
    (losses.sum() * settings.scale).backward();
    return {losses.detach(), x.grad()};
  }
};

TEST_P(CrossEntropyTest, LossAndGradientAgreeWithAutograd) {
  for (const int64_t vocabulary : {7, 256, 1000, 20011})
    for (const double cap : {0.0, 30.0}) {
      const CrossEntropySettings settings{0.25, cap};
      const at::Tensor logits = random({6, vocabulary}, 8.0);
      const at::Tensor targets = int32({0, vocabulary - 1, kIgnoredTarget, 3, vocabulary / 2, kIgnoredTarget});
      const Reference expected = reference(logits, targets, settings);
      const at::Tensor losses = at::empty({6}, fp32());
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor gradient = at::empty({6, vocabulary}, options().dtype(type));
        cross_entropy(losses, gradient, logits, targets, settings);
        expect_rounded(losses, expected.losses, "losses", 2e-6);
        expect_rounded(gradient, expected.gradient, "gradient", 3e-6);
        EXPECT_EQ(gradient[2].abs().sum().item<float>(), 0.0f) << "an ignored row";
        EXPECT_EQ(losses[2].item<float>(), 0.0f);
      }
      at::Tensor in_place = logits.clone();
      cross_entropy(losses, in_place, in_place, targets, settings);
      expect_rounded(in_place, expected.gradient, "in place", 3e-6);
      if (!bf16()) {
        at::Tensor storage = logits.clone();
        const at::Tensor half = bf16_gradient_view(storage);
        cross_entropy(losses, half, storage, targets, settings);
        expect_rounded(half, expected.gradient, "BF16 inside the FP32 rows", 3e-6);
      }
      const at::Tensor alone = at::empty({6}, fp32());
      cross_entropy(alone, {}, logits, targets, settings);
      expect_identical(alone, losses, "losses without gradient");
    }
}

TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  at::Tensor logits = random({2, 64}, 1.0);
  logits[0][5].fill_(3e4);
  logits[1].fill_(-3e4);
  const at::Tensor targets = int32({5, 0}), losses = at::empty({2}, fp32()), gradient = at::empty_like(logits);
  const Reference expected = reference(logits, targets, {});
  cross_entropy(losses, gradient, logits, targets, {});
  EXPECT_NEAR(losses[0].item<double>(), 0.0, 1e-6);
  EXPECT_NEAR(losses[1].item<double>(), std::log(64.0), 4e-3);
  expect_near(gradient, expected.gradient, 4e-3, "gradient");
}

TEST_P(CrossEntropyTest, NonFiniteLogitsShow) {
  at::Tensor logits = random({2, 300}), losses = at::empty({2}, fp32());
  logits[1][299].fill_(std::numeric_limits<double>::quiet_NaN());
  cross_entropy(losses, {}, logits, int32({4, 4}), {});
  EXPECT_TRUE(std::isfinite(losses[0].item<float>()));
  EXPECT_TRUE(std::isnan(losses[1].item<float>()));
}

TEST_P(CrossEntropyTest, ATargetOutsideTheVocabularyShows) {
  const at::Tensor logits = random({1, 8}), losses = at::empty({1}, fp32());
  if (GetParam().device == c10::DeviceType::CPU) {
    EXPECT_THROW(cross_entropy(losses, {}, logits, int32({8}), {}), Error);
  } else {
    cross_entropy(losses, {}, logits, int32({8}), {});
    EXPECT_TRUE(std::isnan(losses[0].item<float>()));
  }
}

TEST_P(CrossEntropyTest, NoRows) {
  const at::Tensor logits = random({0, 8}), losses = at::empty({0}, fp32());
  cross_entropy(losses, at::empty_like(logits), logits, int32({}), {});
}

INSTANTIATE_TEST_SUITE_P(Places, CrossEntropyTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
