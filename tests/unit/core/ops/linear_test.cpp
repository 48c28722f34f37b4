#include "oom/ops/linear.h"

#include <ATen/ops/floor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "operand.h"
#include "ops/cpu_gemm_library.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::expect_identical;
using testing::expect_near;
using testing::fp64;

class LinearTest : public testing::PlacedTest {
 protected:
  double rounding() const { return bf16() ? 4e-3 : 2e-6; }
};

TEST_P(LinearTest, ForwardAndGradientsAgreeWithAutograd) {
  configure_math();
  for (const auto& [batch, tokens, in, out] : {std::tuple{2, 19, 64, 48}, std::tuple{1, 1, 8, 16}, std::tuple{1, 300, 40, 7}}) {
    const at::Tensor x = random({batch, tokens, in}), weight = random({out, in}), dy = random({batch, tokens, out});
    at::Tensor x64 = fp64(x).requires_grad_(), weight64 = fp64(weight).requires_grad_();
    const at::Tensor y64 = at::matmul(x64, weight64.t());
    y64.backward(fp64(dy));
    expect_near(linear_forward(x, weight), y64.detach(), rounding(), "y");
    expect_near(linear_dgrad(dy, weight), x64.grad(), rounding(), "dx");
    const at::Tensor sink = at::zeros({out, in}, options().dtype(at::kFloat));
    linear_wgrad({sink, true}, dy, x);
    expect_near(sink, weight64.grad(), 5e-6, "dW in FP32");
    linear_wgrad({sink, true}, dy, x);
    expect_near(sink, weight64.grad() * 2, 5e-6, "dW added twice");
    at::Tensor own = at::full_like(weight, std::numeric_limits<double>::quiet_NaN());
    linear_wgrad({own, false}, dy, x);
    expect_near(own, weight64.grad(), rounding(), "dW overwritten in the operands' type");
  }
}

TEST_P(LinearTest, LogitsComeInFp32WithoutRounding) {
  configure_math();
  const at::Tensor x = random({33, 128}), weight = random({65, 128});
  const at::Tensor y = linear_forward(x, weight, at::kFloat);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  expect_near(y, at::matmul(fp64(x), fp64(weight).t()), 2e-6, "y in FP32");
}

TEST_P(LinearTest, Fp32IsTrueFp32) {
  if (bf16()) GTEST_SKIP() << "an FP32 promise";
  configure_math();
  // 1 + 2^-12 survives FP32 and not TF32, whose mantissa has 10 bits.
  const at::Tensor x = at::zeros({16, 16}, options()).fill_(1 + 1.0 / 4096), weight = at::zeros({16, 16}, options()).fill_(1);
  expect_identical(linear_forward(x, weight), at::zeros({16, 16}, options()).fill_(16 + 16.0 / 4096), "sums of 1 + 2^-12");
}

TEST_P(LinearTest, NoRows) {
  const at::Tensor x = random({0, 16}), weight = random({8, 16}), dy = random({0, 8});
  EXPECT_EQ(linear_forward(x, weight).sizes(), (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(linear_dgrad(dy, weight).sizes(), (std::vector<int64_t>{0, 16}));
  at::Tensor sink = at::zeros({8, 16}, options().dtype(at::kFloat)).fill_(3);
  linear_wgrad({sink, true}, dy, x);
  expect_identical(sink, at::zeros_like(sink).fill_(3), "an added gradient of no rows");
  linear_wgrad({sink, false}, dy, x);
  expect_identical(sink, at::zeros_like(sink), "an overwritten gradient of no rows");
}

TEST_P(LinearTest, InputGradientsAdd) {
  const at::Tensor dy = random({21, 24}), weight = random({24, 40}), before = random({21, 40});
  const at::Tensor dx = before.clone();
  linear_dgrad_out(dx, dy, weight, true);
  const at::Tensor product = at::matmul(fp64(dy), fp64(weight)), sum = fp64(before) + product;
  if (!bf16()) return expect_near(dx, sum, rounding(), "dx added");
  // LibTorch's product on CUDA is rounded before it is added (seen on H200), so an element is off by up to half a unit in the last place of both.
  const auto half_unit = [](const at::Tensor& x) { return at::ldexp(at::full_like(x, 1.0), at::floor(at::log2(at::abs(x))).sub(8)); };
  const at::Tensor allowed = (half_unit(product) + half_unit(sum)).mul(1 + 1e-3);
  EXPECT_TRUE(((fp64(dx) - sum).abs() <= allowed).all().item<bool>()) << "dx added: " << ((fp64(dx) - sum).abs() / allowed).max().item<double>();
}

TEST_P(LinearTest, ShapesThatDoNotMatchAreRefused) {
  EXPECT_THROW(linear_forward(random({3, 8}), random({4, 9})), Error);
  EXPECT_THROW(linear_wgrad({random({4, 9}), true}, random({3, 4}), random({3, 8})), Error);
}

INSTANTIATE_TEST_SUITE_P(Places, LinearTest, all_places(), testing::place_name);

TEST(CpuGemm, OneDnnIsFoundInThisBuild) { EXPECT_TRUE(cpu_gemm_library_available()); }

TEST(CpuGemm, OneDnnAgreesWithLibTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions().dtype(at::kFloat);
    const at::Tensor a = at::randn({70, 96}, options).to(dtype), b = at::randn({40, 96}, options).to(dtype);
    at::Tensor c = at::zeros({70, 40}, options), reference = at::zeros({70, 40}, options);
    for (int64_t rows : {70, 1, 33}) {
      cpu_gemm(c.narrow(0, 0, rows), a.narrow(0, 0, rows), b.t(), true, VaryingDimension::kM);
      cpu_gemm_libtorch(reference.narrow(0, 0, rows), a.narrow(0, 0, rows), b.t(), true);
      expect_near(c, reference, 1e-6, "accumulated product");
    }
  }
}

}  // namespace
}  // namespace oom::ops
