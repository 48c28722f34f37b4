#include "oom/ops/activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "oom/ops/gate.h"
#include "oom/ops/scale.h"
#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class ActivationTest : public PoisonedTest {
 protected:
  static at::Tensor reference(const at::Tensor& z, GatedActivation kind) {
    const int64_t width = z.size(1) / 2;
    const at::Tensor gate = z.narrow(1, 0, width);
    return (kind == GatedActivation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * z.narrow(1, width, width);
  }
};

TEST_P(ActivationTest, ForwardAndFusedBackwardAgreeWithAutograd) {
  for (const GatedActivation kind : {GatedActivation::kSilu, GatedActivation::kGeluTanh})
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{40, 64}, {3, 5}, {7, 704}, {2, 4096}, {1, 1}}) {
      const at::Tensor z = random({rows, 2 * width}, 2.0), da = random({rows, width}), s = random({rows}).to(at::kFloat);
      at::Tensor z64 = fp64(z).requires_grad_();
      const at::Tensor a64 = reference(z64, kind);
      expect_rounded(gated_activation_forward(z, kind), a64.detach(), "A");
      a64.backward(fp64(da) * fp64(s).unsqueeze(1));
      const GatedGradient g = gated_activation_backward(da, z, kind, s);
      expect_rounded(g.dz, z64.grad(), "dZ", 2e-6);
      // ds and sA use A as the forward rounded it.
      const at::Tensor used = fp64(a64.detach().to(GetParam().dtype));
      expect_near(g.a, used * fp64(s).unsqueeze(1), bf16() ? 8e-3 : 2e-6, "sA");
      const at::Tensor ds = (fp64(da) * used).sum(1), magnitude = (fp64(da) * used).abs().sum(1);
      EXPECT_TRUE(((fp64(g.d_weights) - ds).abs() <= magnitude * (bf16() ? 2e-4 : 3e-6)).all().item<bool>()) << "ds";
      const at::Tensor kept = z.clone();
      const GatedGradient in_place = gated_activation_backward(da, kept, kind, s, true);
      EXPECT_EQ(in_place.dz.data_ptr(), kept.data_ptr());
      expect_identical(kept, g.dz, "dZ over Z");
      expect_identical(in_place.a, g.a, "sA beside dZ over Z");
    }
}

TEST_P(ActivationTest, DenseBackwardHasNoRowWeights) {
  const at::Tensor z = random({9, 48}), da = random({9, 24});
  at::Tensor z64 = fp64(z).requires_grad_();
  reference(z64, GatedActivation::kSilu).backward(fp64(da));
  const GatedGradient g = gated_activation_backward(da, z, GatedActivation::kSilu);
  expect_rounded(g.dz, z64.grad(), "dZ");
  expect_identical(g.a, gated_activation_forward(z, GatedActivation::kSilu), "A again");
  EXPECT_FALSE(g.d_weights.defined());
}

TEST_P(ActivationTest, LargeGatesStayFinite) {
  at::Tensor z = at::zeros({1, 16}, options());
  const std::vector<double> gates{-1e4, -200, -90, -50, 50, 90, 200, 1e4};
  for (int64_t i = 0; i < 8; ++i) z[0][i].fill_(gates[static_cast<size_t>(i)]);
  z.narrow(1, 8, 8).fill_(1.0);
  const at::Tensor da = at::zeros({1, 8}, options()).fill_(1.0);
  for (const GatedActivation kind : {GatedActivation::kSilu, GatedActivation::kGeluTanh}) {
    at::Tensor z64 = fp64(z).requires_grad_();
    const at::Tensor a64 = reference(z64, kind);
    a64.backward(fp64(da));
    expect_rounded(gated_activation_forward(z, kind), a64.detach(), "A");
    expect_rounded(gated_activation_backward(da, z, kind).dz, z64.grad(), "dZ");
  }
}

TEST_P(ActivationTest, NoRows) {
  EXPECT_EQ(gated_activation_forward(random({0, 8}), GatedActivation::kSilu).sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(gated_activation_backward(random({0, 4}), random({0, 8}), GatedActivation::kSilu, random({0}).to(at::kFloat)).dz.numel(), 0);
}

TEST_P(ActivationTest, SoftCap) {
  const at::Tensor x = random({6, 40}, 40.0), dy = random({6, 40});
  at::Tensor x64 = fp64(x).requires_grad_();
  const at::Tensor y64 = at::tanh(x64 / 30.0) * 30.0;
  y64.backward(fp64(dy));
  at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
  soft_cap_forward_out(y, x, 30.0);
  expect_rounded(y, y64.detach(), "y");
  soft_cap_backward_out(dx, dy, y, 30.0);
  // The slope comes from the rounded y: its error is that of y / cap, doubled.
  const at::Tensor slope = fp64(y).div(30.0).pow(2).neg().add(1);
  expect_rounded(dx, fp64(dy) * slope, "dx of the rounded y");
  EXPECT_LE((fp64(dx) - x64.grad()).abs().max().item<double>(), bf16() ? 0.05 : 1e-5);
}

TEST_P(ActivationTest, SigmoidGateOnStridedHeads) {
  for (const int64_t width : {32, 5}) {
    const at::Tensor fused = random({6, 4 * 2 * width});
    const at::Tensor gate = fused.view({6, 4, 2 * width}).narrow(2, width, width);
    const at::Tensor x = random({6, 4, width}), dy = random({6, 4, width});
    at::Tensor x64 = fp64(x).requires_grad_(), gate64 = fp64(gate).requires_grad_();
    const at::Tensor y64 = x64 * at::sigmoid(gate64);
    y64.backward(fp64(dy));
    expect_rounded(sigmoid_gate_forward(x, gate), y64.detach(), "y");
    const at::Tensor d_fused = at::zeros({6, 4 * 2 * width}, options());
    at::Tensor dx = at::empty_like(x);
    const at::Tensor dgate = d_fused.view({6, 4, 2 * width}).narrow(2, width, width);
    sigmoid_gate_backward_out(dx, dgate, dy, x, gate);
    expect_rounded(dx, x64.grad(), "dx");
    expect_rounded(dgate, gate64.grad(), "dgate");
    EXPECT_EQ(d_fused.view({6, 4, 2 * width}).narrow(2, 0, width).abs().sum().item<float>(), 0.0f);
    const at::Tensor over = dy.clone();
    sigmoid_gate_backward_out(over, fused.view({6, 4, 2 * width}).narrow(2, width, width), over, x, gate);
    expect_identical(over, dx, "dx over dy");
    expect_identical(gate.contiguous(), dgate.contiguous(), "dgate over the gate");
  }
}

TEST_P(ActivationTest, RowGate) {
  for (const int64_t width : {64, 2048, 3}) {
    const at::Tensor x = random({11, width}), dy = random({11, width}), gate = random({11, 1});
    at::Tensor x64 = fp64(x).requires_grad_(), gate64 = fp64(gate).requires_grad_();
    (x64 * at::sigmoid(gate64)).backward(fp64(dy));
    expect_rounded(row_gate_forward(x, gate), fp64(x) * at::sigmoid(fp64(gate)).view({-1, 1}), "y");
    const RowGateGradient g = row_gate_backward(dy, x, gate);
    expect_rounded(g.dx, x64.grad(), "dx");
    expect_rounded(g.dgate, gate64.grad(), "dgate", 3e-6);
  }
}

TEST_P(ActivationTest, ScalesAndSums) {
  for (const int64_t width : {40, 7}) {
    const at::Tensor x = random({5, width}), addend = random({5, width}), scalar = random({1});
    at::Tensor y = at::empty_like(x);
    scale_out(y, x, 53.0);
    expect_rounded(y, fp64(x) * 53.0, "scale");
    scale_by_out(y, x, scalar);
    expect_rounded(y, fp64(x) * fp64(scalar), "scale by a tensor");
    add_scaled_out(y, x, addend, -0.5);
    expect_rounded(y, fp64(x) - fp64(addend) * 0.5, "scaled sum");
    y = x.clone();
    add_scaled_out(y, y, addend);
    expect_identical(y, add_residual(x, addend), "sum in place");
  }
  EXPECT_EQ(add_residual(random({0, 8}), random({0, 8})).numel(), 0);
}

INSTANTIATE_TEST_SUITE_P(Places, ActivationTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
