#include "oom/ops/rotary.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sin.h>

#include <cmath>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

TEST(RotaryFrequenciesTest, DefaultFallsGeometrically) {
  const RotaryFrequencies f = rotary_frequencies({RotaryKind::kDefault, 10000.0, 128, 0.25});
  ASSERT_EQ(f.inverse.numel(), 16);
  EXPECT_EQ(f.scaling, 1.0);
  for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(f.inverse[i].item<double>(), std::pow(10000.0, -2.0 * static_cast<double>(i) / 32), 2e-7);
}

TEST(RotaryFrequenciesTest, ProportionalTurnsTheFirstPairsOverTheWholeHead) {
  const RotaryFrequencies f = rotary_frequencies({RotaryKind::kProportional, 1e6, 512, 0.25});
  ASSERT_EQ(f.inverse.numel(), 256);
  for (int64_t i = 0; i < 256; ++i)
    EXPECT_NEAR(f.inverse[i].item<double>(), i < 64 ? std::pow(1e6, -2.0 * static_cast<double>(i) / 512) : 0.0, 2e-7) << i;
}

TEST(RotaryFrequenciesTest, YarnKeepsFastAndStretchesSlowFrequencies) {
  // d = 128, theta = 1e6, L = 32768: low = floor(64 ln(32768/(32*2pi))/ln 1e6) = 23, high = ceil(64 ln(32768/(2pi))/ln 1e6) = 40.
  RotarySettings settings{RotaryKind::kYarn, 1e6, 128, 1.0, 4.0, 32768};
  const RotaryFrequencies f = rotary_frequencies(settings);
  EXPECT_NEAR(f.scaling, 0.1 * std::log(4.0) + 1.0, 1e-12);
  for (int64_t i = 0; i < 64; ++i) {
    const double ramp = std::min(1.0, std::max(0.0, static_cast<double>(i - 23) / 17.0));
    const double plain = std::pow(1e6, -2.0 * static_cast<double>(i) / 128);
    EXPECT_NEAR(f.inverse[i].item<double>() / (ramp * plain / 4 + (1 - ramp) * plain), 1.0, 1e-5) << i;
  }
}

TEST(RotaryFrequenciesTest, WrongSettingsAreTheUsersMistake) {
  EXPECT_THROW(rotary_frequencies({RotaryKind::kDefault, 1e4, 127}), ConfigError);
  EXPECT_THROW(rotary_frequencies({RotaryKind::kDefault, 0.5, 128}), ConfigError);
  EXPECT_THROW(rotary_frequencies({RotaryKind::kYarn, 1e4, 128, 1.0, 4.0, 0}), ConfigError);
  EXPECT_THROW(rotary_frequencies({RotaryKind::kDefault, 1e4, 10, 0.3}), ConfigError) << "three dimensions cannot pair";
}

class RotaryTest : public PoisonedTest {
 protected:
  RotaryTable table(const RotarySettings& settings, const std::vector<int64_t>& positions) {
    return rotary_table(rotary_frequencies(settings), int32(positions), GetParam().dtype);
  }
  static at::Tensor reference(const at::Tensor& x, const RotaryTable& t) {
    const int64_t half = t.cosine.size(1);
    const at::Tensor c = fp64(t.cosine).unsqueeze(1), s = fp64(t.sine).unsqueeze(1);
    const at::Tensor first = x.narrow(2, 0, half), second = x.narrow(2, half, half);
    return at::cat({first * c - second * s, second * c + first * s, x.narrow(2, 2 * half, x.size(2) - 2 * half)}, 2);
  }
};

TEST_P(RotaryTest, TableHoldsCosinesAndSines) {
  const RotaryFrequencies f = rotary_frequencies({RotaryKind::kYarn, 1e6, 64, 1.0, 4.0, 4096});
  const RotaryTable t = rotary_table(f, int32({0, 1, 77, 4095, 100000}), GetParam().dtype);
  // The angle is an FP32 product: the reference starts from the same one.
  const at::Tensor positions = at::tensor(std::vector<float>{0, 1, 77, 4095, 100000}).unsqueeze(1);
  const at::Tensor angle = (positions * f.inverse.unsqueeze(0)).to(at::kDouble);
  expect_rounded(t.cosine, at::cos(angle) * f.scaling, "cosine");
  expect_rounded(t.sine, at::sin(angle) * f.scaling, "sine");
}

TEST_P(RotaryTest, RotatesAndTurnsBack) {
  for (const auto& [dim, partial] : {std::pair<int64_t, double>{64, 1.0}, {256, 0.25}, {12, 0.5}, {16, 1.0}}) {
    const RotaryTable t = table({RotaryKind::kDefault, 1e4, dim, partial}, {0, 5, 6, 900, 3});
    const at::Tensor x = random({5, 3, dim}), dy = random({5, 3, dim});
    at::Tensor x64 = fp64(x).requires_grad_();
    const at::Tensor y64 = reference(x64, t);
    y64.backward(fp64(dy));
    at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
    rotary_forward_out(y, x, t);
    expect_rounded(y, y64.detach(), "y");
    rotary_backward_out(dx, dy, t);
    expect_rounded(dx, x64.grad(), "dx");
    at::Tensor in_place = x.clone();
    rotary_forward_out(in_place, in_place, t);
    expect_identical(in_place, y, "in place");
  }
}

TEST_P(RotaryTest, ZeroFrequenciesPassThrough) {
  const RotaryTable t = table({RotaryKind::kProportional, 1e6, 64, 0.25}, {3, 4000});
  const at::Tensor x = random({2, 2, 64});
  at::Tensor y = at::empty_like(x);
  rotary_forward_out(y, x, t);
  expect_rounded(y, reference(fp64(x), t), "y");
  expect_identical(y.narrow(2, 8, 24).contiguous(), x.narrow(2, 8, 24).contiguous(), "pairs that do not turn");
}

TEST_P(RotaryTest, HeadsInsideAFusedProjection) {
  const RotaryTable t = table({RotaryKind::kDefault, 1e4, 32}, {7, 8, 9});
  const at::Tensor fused = random({3, 4 * 64});
  const at::Tensor x = fused.view({3, 4, 64}).narrow(2, 32, 32);
  const at::Tensor expected = reference(fp64(x), t);
  rotary_forward_out(x, x, t);
  expect_rounded(x, expected, "a strided view in place");
}

TEST_P(RotaryTest, NoTokens) {
  const RotaryTable t = table({RotaryKind::kDefault, 1e4, 32}, {});
  at::Tensor x = random({0, 4, 32});
  rotary_forward_out(x, x, t);
  EXPECT_EQ(t.cosine.size(0), 0);
}

INSTANTIATE_TEST_SUITE_P(Places, RotaryTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
