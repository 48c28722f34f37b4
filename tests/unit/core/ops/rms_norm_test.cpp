#include "oom/ops/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class RmsNormTest : public PoisonedTest {
 protected:
  static constexpr double kEps = 1e-5;

  /// The norm as its family writes it, in x's precision; casts inside go to `inner` where the family has them.
  static at::Tensor reference(const at::Tensor& x, const at::Tensor& weight, NormFlavour flavour, const at::Tensor& gate, at::ScalarType inner) {
    at::Tensor n = x * at::rsqrt((x * x).mean(-1, true) + kEps);
    if (flavour == NormFlavour::kLlama || flavour == NormFlavour::kGated) n = n.to(inner).to(x.scalar_type());
    if (flavour == NormFlavour::kZeroCentred) return n * (weight + 1);
    at::Tensor y = weight.defined() ? n * weight : n;
    if (flavour == NormFlavour::kGated) y = y.to(inner).to(x.scalar_type()) * at::silu(gate);
    return y;
  }

  /// All elements within `tolerance` of the reference; with inner rounding all but a few, where an inner value on the edge between two BF16 numbers fell
  /// to the other side, and those within one such step.
  static void expect_mostly(const at::Tensor& actual, const at::Tensor& exact, double tolerance, const std::string& what, bool inner_rounding = true) {
    ASSERT_EQ(actual.sizes(), exact.sizes()) << what;
    if (!inner_rounding) return expect_near(actual, exact, tolerance, what);
    expect_near(actual, exact, 8e-3, what);
    const double scale = exact.pow(2).mean().sqrt().item<double>();
    const at::Tensor off = ((fp64(actual) - exact).abs() > exact.abs() * tolerance + scale * 5e-6).to(at::kDouble).mean();
    EXPECT_LE(off.item<double>(), 3e-3) << what;
  }

  void check(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& weight, NormFlavour flavour, const at::Tensor& gate, const std::string& what) {
    const NormOutput out = rms_norm_forward(x, weight, kEps, flavour, gate);
    at::Tensor x64 = fp64(x).requires_grad_();
    at::Tensor w64 = weight.defined() ? fp64(weight).requires_grad_() : at::Tensor();
    at::Tensor z64 = gate.defined() ? fp64(gate).requires_grad_() : at::Tensor();
    // Gradients: against the unrounded function. Forward: rounding where the flavour rounds.
    const at::Tensor smooth = reference(x64, w64, flavour, z64, at::kDouble);
    smooth.backward(fp64(dy));
    const at::Tensor exact = reference(fp64(x), weight.defined() ? fp64(weight) : weight, flavour, gate.defined() ? fp64(gate) : gate, x.scalar_type());
    const bool inside = bf16() && (flavour == NormFlavour::kLlama || flavour == NormFlavour::kGated);
    if (inside)
      expect_mostly(out.y, exact, 0.00391, what + " y");
    else
      expect_rounded(out.y, exact, what + " y");
    // What the flavour rounds inside is what the weight and the gate met: their gradients see the rounded values.
    at::Tensor w_gradient = weight.defined() ? w64.grad() : weight, z_gradient = gate.defined() ? z64.grad() : gate;
    if (inside) {
      const at::Tensor n = (fp64(x) * at::rsqrt(fp64(x).pow(2).mean(-1, true) + kEps)).to(at::kBFloat16).to(at::kDouble);
      const at::Tensor z = gate.defined() ? fp64(gate).requires_grad_() : at::Tensor();
      const at::Tensor w = fp64(weight).requires_grad_();
      (gate.defined() ? n * w * at::silu(z) : n * w).backward(fp64(dy));
      w_gradient = w.grad();
      if (gate.defined()) {
        const at::Tensor z_again = fp64(gate).requires_grad_();
        ((n * fp64(weight)).to(at::kBFloat16).to(at::kDouble) * at::silu(z_again)).backward(fp64(dy));
        z_gradient = z_again.grad();
      }
    }
    for (const bool accumulate : {false, true}) {
      const at::Tensor start = accumulate ? at::full({x.size(-1)}, 3.0, fp32()) : at::empty({x.size(-1)}, fp32());
      const at::Tensor residual = accumulate ? random(x.sizes().vec()) : at::Tensor();
      GradientSink sink;
      if (weight.defined()) sink = {start, accumulate};
      const NormGradient gradient = rms_norm_backward(dy, x, weight, out.rstd, flavour, sink, gate, residual);
      expect_rounded(gradient.dx, accumulate ? x64.grad() + fp64(residual) : x64.grad(), what + " dx", 2e-6);
      if (weight.defined()) expect_mostly(start, w_gradient + (accumulate ? 3.0 : 0.0), 5e-6, what + " dweight", inside);
      if (gate.defined()) expect_mostly(gradient.dgate, z_gradient, bf16() ? 0.00391 : 5e-6, what + " dgate", inside);
    }
  }
};

TEST_P(RmsNormTest, EveryFlavourAgreesWithAutograd) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{37, 64}, {1, 8}, {5, 2048}, {700, 72}, {3, 5}, {9, 3, 128}, {2, 5120}}) {
    const at::Tensor x = random(shape, 2.0), dy = random(shape), gate = random(shape);
    const at::Tensor weight = random({shape.back()});
    const std::string what = "width " + std::to_string(shape.back());
    check(x, dy, weight, NormFlavour::kLlama, {}, "llama, " + what);
    check(x, dy, weight, NormFlavour::kZeroCentred, {}, "zero-centred, " + what);
    check(x, dy, weight, NormFlavour::kPlain, {}, "plain, " + what);
    check(x, dy, {}, NormFlavour::kPlain, {}, "plain without weight, " + what);
    check(x, dy, weight, NormFlavour::kGated, gate, "gated, " + what);
    check(x, dy, weight.to(at::kFloat), NormFlavour::kPlain, {}, "plain with an FP32 weight, " + what);
  }
}

TEST_P(RmsNormTest, HeadsInsideAFusedProjectionNeedNoCopy) {
  const int64_t tokens = 11, heads = 3, width = 32;
  const at::Tensor fused = random({tokens, heads * 2 * width});
  const at::Tensor x = fused.view({tokens, heads, 2 * width}).narrow(2, 0, width);
  const at::Tensor weight = random({width}), dy = random({tokens, heads, width});
  const NormOutput strided = rms_norm_forward(x, weight, kEps, NormFlavour::kLlama);
  const NormOutput dense = rms_norm_forward(x.contiguous(), weight, kEps, NormFlavour::kLlama);
  expect_identical(strided.y, dense.y, "y of a strided view");
  const at::Tensor d_fused = at::zeros({tokens, heads * 2 * width}, options());
  const at::Tensor dx = d_fused.view({tokens, heads, 2 * width}).narrow(2, 0, width);
  const at::Tensor sink = at::empty({width}, options()), dense_sink = at::empty({width}, options());
  rms_norm_backward_out({dx, {}}, dy, x, weight, strided.rstd, NormFlavour::kLlama, {sink, false});
  const NormGradient gradient = rms_norm_backward(dy, x.contiguous(), weight, dense.rstd, NormFlavour::kLlama, {dense_sink, false});
  expect_identical(dx.contiguous(), gradient.dx, "dx of a strided view");
  expect_identical(sink, dense_sink, "dweight of a strided view");
  EXPECT_EQ(d_fused.view({tokens, heads, 2 * width}).narrow(2, width, width).abs().sum().item<float>(), 0.0f) << "the other half was touched";
}

TEST_P(RmsNormTest, RepeatsBitForBit) {
  const at::Tensor x = random({5000, 256}), dy = random({5000, 256}), weight = random({256});
  const NormOutput out = rms_norm_forward(x, weight, kEps, NormFlavour::kPlain);
  const at::Tensor first = at::empty({256}, fp32()), second = at::empty({256}, fp32());
  rms_norm_backward(dy, x, weight, out.rstd, NormFlavour::kPlain, {first, false});
  rms_norm_backward(dy, x, weight, out.rstd, NormFlavour::kPlain, {second, false});
  expect_identical(first, second, "dweight");
}

TEST_P(RmsNormTest, NoRowsGiveAZeroGradient) {
  const at::Tensor x = random({0, 16}), weight = random({16});
  const NormOutput out = rms_norm_forward(x, weight, kEps, NormFlavour::kZeroCentred);
  EXPECT_EQ(out.y.sizes(), x.sizes());
  const at::Tensor sink = at::empty({16}, options());
  rms_norm_backward(x, x, weight, out.rstd, NormFlavour::kZeroCentred, {sink, false});
  EXPECT_EQ(sink.abs().sum().item<float>(), 0.0f);
}

TEST_P(RmsNormTest, WrongOperandsAreRefused) {
  const at::Tensor x = random({4, 16});
  EXPECT_THROW(rms_norm_forward(x, {}, kEps, NormFlavour::kLlama), Error) << "no weight";
  EXPECT_THROW(rms_norm_forward(x, random({15}), kEps, NormFlavour::kLlama), Error) << "weight of another width";
  EXPECT_THROW(rms_norm_forward(x, random({16}), kEps, NormFlavour::kGated), Error) << "no gate";
}

INSTANTIATE_TEST_SUITE_P(Places, RmsNormTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
