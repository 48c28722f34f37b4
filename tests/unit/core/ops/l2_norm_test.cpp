#include "oom/ops/l2_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class L2NormTest : public PoisonedTest {};

TEST_P(L2NormTest, HeadsOfAProjectionAgreeWithAutograd) {
  constexpr double kEps = 1e-6;
  for (const auto& [tokens, heads, width] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{37, 3, 16}, {1, 1, 128}, {300, 2, 128}, {5, 2, 6}}) {
    // The middle part of each token's projection, as keys lie beside queries and values.
    const at::Tensor x = random({tokens, 3 * heads * width}, 0.7).narrow(1, heads * width, heads * width).view({tokens, heads, width});
    const at::Tensor dy = random({tokens, heads, width}), exact = fp64(x).requires_grad_();
    const at::Tensor y = exact * at::rsqrt(exact.pow(2).sum(-1, true) + kEps);
    y.backward(fp64(dy));
    const L2Output out = l2_norm_forward(x, kEps);
    expect_rounded(out.y, y, "y", 2e-6);
    const at::Tensor gradients = at::zeros({tokens, 3 * heads * width}, options());
    const at::Tensor dx = gradients.narrow(1, heads * width, heads * width).view({tokens, heads, width});
    l2_norm_backward_out(dx, dy, x, out.rstd);
    expect_rounded(dx, exact.grad(), "dx", 2e-6);
    EXPECT_EQ(gradients.narrow(1, 0, heads * width).abs().sum().item<float>(), 0.0f) << "the neighbour was touched";
  }
}

TEST_P(L2NormTest, EpsilonCounts) {
  const at::Tensor x = at::full({1, 1, 4}, 1e-3, options());
  const at::Tensor exact = fp64(x) / (fp64(x).pow(2).sum(-1, true) + 1e-6).sqrt();
  expect_rounded(l2_norm_forward(x, 1e-6).y, exact, "y", 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Places, L2NormTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
