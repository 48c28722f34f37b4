// The L2 norm is the RMS norm with every weight 1 / sqrt(D), as sum(x^2) = D mean(x^2).
#include "oom/ops/l2_norm.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "oom/ops/rms_norm.h"

namespace oom::ops {
namespace {

at::Tensor weight_of(const at::Tensor& x) {
  return at::full({x.size(-1)}, 1.0 / std::sqrt(static_cast<double>(x.size(-1))), x.options().dtype(at::kFloat));
}

}  // namespace

L2Output l2_norm_forward(const at::Tensor& x, double eps) {
  const NormOutput out = rms_norm_forward(x, weight_of(x), eps / static_cast<double>(x.size(-1)), NormFlavour::kPlain);
  return {out.y, out.rstd};
}

void l2_norm_backward_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd) {
  rms_norm_backward_out({dx, {}}, dy, x, weight_of(x), rstd, NormFlavour::kPlain, {});
}

}  // namespace oom::ops
