#include "oom/ops/linear.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <vector>

#include "ops/cpu_gemm_library.h"

namespace oom::ops {
namespace {

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

std::vector<int64_t> with_last(const at::Tensor& x, int64_t size) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = size;
  return shape;
}

void require_matching(const at::Tensor& x, const at::Tensor& weight, int64_t weight_dimension) {
  OOM_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(weight_dimension), "activations ", x.sizes(), " against weight ",
            weight.sizes());
  OOM_CHECK(x.scalar_type() == weight.scalar_type(), "activations of type ", c10::toString(x.scalar_type()), " against weight of type ",
            c10::toString(weight.scalar_type()));
}

/// c (+)= a b on either device. On CUDA a c of FP32 beside BF16 operands is cuBLAS's mixed form: no rounding between product and sum.
void multiply(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate, VaryingDimension varying) {
  if (a.device().is_cpu()) {
    cpu_gemm(c, a, b, accumulate, varying);
    return;
  }
  at::Tensor out = c;
  if (out.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!accumulate) out.zero_();
  } else if (out.scalar_type() == a.scalar_type()) {
    if (accumulate)
      at::addmm_out(out, out, a, b);
    else
      at::mm_out(out, a, b);
  } else {
    OOM_CHECK(out.scalar_type() == at::kFloat && a.scalar_type() == at::kBFloat16, "a product of ", c10::toString(a.scalar_type()),
              " operands cannot be written as ", c10::toString(out.scalar_type()), " on CUDA");
    if (accumulate)
      at::addmm_out(out, out, a, b, at::kFloat);
    else
      at::mm_out(out, a, b, at::kFloat);
  }
}

}  // namespace

void configure_math() {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setBenchmarkCuDNN(false);
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, std::optional<at::ScalarType> out_dtype) {
  require_matching(x, weight, 1);
  at::Tensor y = at::empty(with_last(x, weight.size(0)), x.options().dtype(out_dtype.value_or(x.scalar_type())));
  linear_forward_out(y, x, weight);
  return y;
}

void linear_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  require_matching(x, weight, 1);
  OOM_CHECK(y.is_contiguous(), "the output of a linear layer is contiguous");
  multiply(y.view({-1, weight.size(0)}), as_rows(x), weight.t(), false, VaryingDimension::kM);
}

at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& weight) {
  require_matching(dy, weight, 0);
  at::Tensor dx = at::empty(with_last(dy, weight.size(1)), dy.options());
  linear_dgrad_out(dx, dy, weight);
  return dx;
}

void linear_dgrad_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight, bool accumulate) {
  require_matching(dy, weight, 0);
  OOM_CHECK(dx.is_contiguous(), "the input gradient of a linear layer is contiguous");
  multiply(dx.view({-1, weight.size(1)}), as_rows(dy), weight, accumulate, VaryingDimension::kM);
}

void linear_wgrad(const GradientSink& sink, const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor dy_rows = as_rows(dy), x_rows = as_rows(x);
  OOM_CHECK_EQ(dy_rows.size(0), x_rows.size(0), "rows of dy and x of one linear layer");
  OOM_CHECK(sink.tensor.dim() == 2 && sink.tensor.size(0) == dy_rows.size(1) && sink.tensor.size(1) == x_rows.size(1), "sink ",
            sink.tensor.sizes(), " for dy ", dy.sizes(), " and x ", x.sizes());
  OOM_CHECK(sink.tensor.is_contiguous(), "a gradient sink is contiguous");
  multiply(sink.tensor, dy_rows.t(), x_rows, sink.accumulate, VaryingDimension::kK);
}

}  // namespace oom::ops
