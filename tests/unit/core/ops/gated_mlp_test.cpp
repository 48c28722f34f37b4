#include "oom/ops/gated_mlp.h"

#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>

#include <cmath>
#include <limits>

#include "operand.h"
#include "oom/ops/linear.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::fp64;

class GatedMlpTest : public testing::PlacedTest {
 protected:
  /// In BF16, Z, A, their gradients and the results are rounded once each.
  void expect_close(const at::Tensor& actual, const at::Tensor& reference, const std::string& what) const {
    if (bf16())
      testing::expect_near_overall(actual, reference, 8e-3, what);
    else
      testing::expect_near(actual, reference, 5e-6, what);
  }
};

TEST_P(GatedMlpTest, AgreesWithAutograd) {
  configure_math();
  constexpr int64_t kHidden = 48, kWidth = 56;
  for (const GatedActivation kind : {GatedActivation::kSilu, GatedActivation::kGeluTanh})
    for (const int64_t tokens : {1, 37}) {
      const at::Tensor x = random({tokens, kHidden}), dy = random({tokens, kHidden}), before = random({tokens, kHidden});
      const GatedMlpWeights weights{random({kWidth, kHidden}, 1 / std::sqrt(double{kHidden})), random({kWidth, kHidden}, 1 / std::sqrt(double{kHidden})),
                                    random({kHidden, kWidth}, 1 / std::sqrt(double{kWidth})), kind};
      at::Tensor x64 = fp64(x).requires_grad_(), gate64 = fp64(weights.gate).requires_grad_(), up64 = fp64(weights.up).requires_grad_(), down64 = fp64(weights.down).requires_grad_();
      const at::Tensor gate = at::matmul(x64, gate64.t());
      const at::Tensor y64 = at::matmul((kind == GatedActivation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * at::matmul(x64, up64.t()), down64.t());
      y64.backward(fp64(dy));

      const GatedMlpForward forward = gated_mlp_forward(x, weights);
      expect_close(forward.y, y64.detach(), "y");
      const auto sink = [&](const at::Tensor& weight) {
        return GradientSink{at::full(weight.sizes(), std::numeric_limits<double>::quiet_NaN(), options().dtype(at::kFloat)), /*accumulate=*/false};
      };
      const GatedMlpSinks sinks{sink(weights.gate), sink(weights.up), sink(weights.down)};
      expect_close(gated_mlp_backward(dy, x, forward.z, weights, sinks), x64.grad(), "dx");
      expect_close(sinks.gate.tensor, gate64.grad(), "dgate");
      expect_close(sinks.up.tensor, up64.grad(), "dup");
      expect_close(sinks.down.tensor, down64.grad(), "ddown");
      const at::Tensor sum = before.clone();
      gated_mlp_backward(dy, x, forward.z, weights, sinks, sum);
      expect_close(sum, fp64(before) + x64.grad(), "dx added");
    }
}

INSTANTIATE_TEST_SUITE_P(Places, GatedMlpTest, all_places(), testing::place_name);

}  // namespace
}  // namespace oom::ops
