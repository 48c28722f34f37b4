#include "oom/ops/rms_norm.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#include "ops/rms_norm_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

/// Returns the factor on n: w, 1 + w, or 1.
std::vector<float> factors(const Array& weight, NormFlavour flavour, int64_t width) {
  std::vector<float> factor(static_cast<size_t>(width), 1.0f);
  if (weight.data != nullptr)
    for (int64_t c = 0; c < width; ++c)
      factor[static_cast<size_t>(c)] = read(weight.data, weight.element, c) + (flavour == NormFlavour::kZeroCentred ? 1.0f : 0.0f);
  return factor;
}

bool rounds_inside(NormFlavour flavour) { return flavour == NormFlavour::kLlama || flavour == NormFlavour::kGated; }

template <typename T>
void forward_rows(const NormForward& a, const std::vector<float>& factor, int64_t begin, int64_t end) {
  const int64_t width = a.x.width;
  const bool inside = rounds_inside(a.flavour);
  const bool product_rounds = a.flavour == NormFlavour::kGated && a.weight.element == a.x.element;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = a.x.at<T>(r);
    T* y = a.y.at<T>(r);
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += static_cast<double>(static_cast<float>(x[c])) * static_cast<float>(x[c]);
    const float rstd = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(width)) + a.eps);
    a.rstd[r] = rstd;
    for (int64_t c = 0; c < width; ++c) {
      float n = static_cast<float>(x[c]) * rstd;
      if (inside) n = rounded<T>(n);
      float value = n * factor[static_cast<size_t>(c)];
      if (a.flavour == NormFlavour::kGated) {
        if (product_rounds) value = rounded<T>(value);
        const float z = static_cast<float>(a.gate.at<T>(r)[c]);
        value *= z / (1.0f + std::exp(-z));
      }
      y[c] = static_cast<T>(value);
    }
  }
}

/// Rows begin, begin + step, ...: their dx, and their share of the weight's gradient added to `dweight`.
template <typename T>
void backward_rows(const NormBackward& a, const std::vector<float>& factor, int64_t begin, int64_t step, float* dweight) {
  const int64_t width = a.x.width;
  const bool inside = rounds_inside(a.flavour);
  const bool gated = a.flavour == NormFlavour::kGated;
  const bool product_rounds = gated && a.weight.element == a.x.element;
  std::vector<float> dn(static_cast<size_t>(width));
  for (int64_t r = begin; r < a.x.count; r += step) {
    const T* x = a.x.at<T>(r);
    const T* dy = a.dy.at<T>(r);
    const float rstd = a.rstd[r];
    double projection = 0;
    for (int64_t c = 0; c < width; ++c) {
      const float n = static_cast<float>(x[c]) * rstd;
      const float used = inside ? rounded<T>(n) : n;
      const float w = factor[static_cast<size_t>(c)];
      float upstream = static_cast<float>(dy[c]);
      if (gated) {
        const float z = static_cast<float>(a.gate.at<T>(r)[c]);
        const float sigmoid = 1.0f / (1.0f + std::exp(-z));
        const float product = product_rounds ? rounded<T>(used * w) : used * w;
        a.dgate.at<T>(r)[c] = static_cast<T>(upstream * product * sigmoid * (1.0f + z * (1.0f - sigmoid)));
        upstream *= z * sigmoid;
      }
      if (dweight != nullptr) dweight[c] += upstream * used;
      dn[static_cast<size_t>(c)] = upstream * w;
      projection += static_cast<double>(upstream * w) * n;
    }
    const float mean = static_cast<float>(projection / static_cast<double>(width));
    const T* residual = a.residual_gradient.data != nullptr ? a.residual_gradient.at<T>(r) : nullptr;
    T* dx = a.dx.at<T>(r);
    for (int64_t c = 0; c < width; ++c) {
      const float n = static_cast<float>(x[c]) * rstd;
      const float value = rstd * (dn[static_cast<size_t>(c)] - n * mean);
      dx[c] = static_cast<T>(residual != nullptr ? value + static_cast<float>(residual[c]) : value);
    }
  }
}

void backward_cpu(const NormBackward& a) {
  const std::vector<float> factor = factors(a.weight, a.flavour, a.x.width);
  with_type(a.x.element, [&](auto tag) {
    at::parallel_for(0, a.partial_count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* partial = a.partials != nullptr ? a.partials + p * a.x.width : nullptr;
        if (partial != nullptr) std::fill(partial, partial + a.x.width, 0.0f);
        backward_rows<decltype(tag)>(a, factor, p, a.partial_count, partial);
      }
    });
  });
  if (a.partials == nullptr) return;
  for (int64_t c = 0; c < a.x.width; ++c) {
    float sum = 0;
    for (int64_t p = 0; p < a.partial_count; ++p) sum += a.partials[p * a.x.width + c];
    add_to(a.sink, c, sum);
  }
}

void require_operands(const at::Tensor& x, const at::Tensor& weight, NormFlavour flavour, const at::Tensor& gate) {
  OOM_CHECK(weight.defined() ? weight.numel() == x.size(-1) : flavour == NormFlavour::kPlain, "a norm over ", x.sizes(),
            " needs a weight of its width (without one only in the plain flavour); got ", weight.defined() ? weight.numel() : 0);
  OOM_CHECK_EQ(gate.defined(), flavour == NormFlavour::kGated, "only the gated norm takes a gate");
  if (gate.defined()) require_alike(gate, x, "gate");
}

}  // namespace

void rms_norm_forward_out(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps,
                          NormFlavour flavour, const at::Tensor& gate) {
  require_operands(x, weight, flavour, gate);
  require_alike(y, x, "y");
  require_contiguous(rstd, at::kFloat, x, "rstd");
  NormForward a{rows_of(x), rows_of(gate), rows_of(y), array_of(weight), rstd.data_ptr<float>(), static_cast<float>(eps), flavour};
  OOM_CHECK_EQ(rstd.numel(), a.x.count, "rstd holds one element a row");
  if (x.numel() == 0) return;
  if (on_cuda(x)) {
    if constexpr (kWithCuda) rms_norm_forward_cuda(a, current_stream(x));
    return;
  }
  const std::vector<float> factor = factors(a.weight, flavour, a.x.width);
  with_type(a.x.element, [&](auto tag) {
    at::parallel_for(0, a.x.count, grain_rows(a.x.width),
                     [&](int64_t begin, int64_t end) { forward_rows<decltype(tag)>(a, factor, begin, end); });
  });
}

NormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, NormFlavour flavour, const at::Tensor& gate) {
  const int64_t width = x.size(-1);
  NormOutput out{empty_as(x), empty_on(x, {width > 0 ? x.numel() / width : 0}, at::kFloat)};
  rms_norm_forward_out(out.y, out.rstd, x, weight, eps, flavour, gate);
  return out;
}

void rms_norm_backward_out(const NormGradient& out, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                           NormFlavour flavour, const GradientSink& weight_sink, const at::Tensor& gate, const at::Tensor& residual_gradient) {
  require_operands(x, weight, flavour, gate);
  require_alike(dy, x, "dy");
  require_alike(out.dx, x, "dx");
  if (gate.defined()) require_alike(out.dgate, x, "dgate");
  if (residual_gradient.defined()) require_alike(residual_gradient, x, "residual_gradient");
  require_contiguous(rstd, at::kFloat, x, "rstd");
  OOM_CHECK(weight.defined() || !weight_sink.tensor.defined(), "a norm without weight has no gradient for one");
  NormBackward a;
  a.dy = rows_of(dy);
  a.x = rows_of(x);
  a.gate = rows_of(gate);
  a.residual_gradient = rows_of(residual_gradient);
  a.dx = rows_of(out.dx);
  a.dgate = rows_of(out.dgate);
  a.weight = array_of(weight);
  a.rstd = rstd.data_ptr<float>();
  a.flavour = flavour;
  a.sink = sink_of(weight_sink, a.x.width);
  OOM_CHECK_EQ(rstd.numel(), a.x.count, "rstd holds one element a row");
  if (x.numel() == 0) {
    if (a.sink.data != nullptr && !a.sink.accumulate) weight_sink.tensor.zero_();
    return;
  }
  a.partial_count = norm_partial_count(a.x.count);
  at::Tensor partials;
  if (a.sink.data != nullptr) {
    partials = empty_on(x, {a.partial_count, a.x.width}, at::kFloat);
    a.partials = partials.data_ptr<float>();
  }
  if (on_cuda(x)) {
    if constexpr (kWithCuda) rms_norm_backward_cuda(a, current_stream(x));
  } else {
    backward_cpu(a);
  }
}

NormGradient rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, NormFlavour flavour,
                               const GradientSink& weight_sink, const at::Tensor& gate, const at::Tensor& residual_gradient) {
  NormGradient out{empty_as(x), gate.defined() ? empty_as(x) : at::Tensor()};
  rms_norm_backward_out(out, dy, x, weight, rstd, flavour, weight_sink, gate, residual_gradient);
  return out;
}

}  // namespace oom::ops
