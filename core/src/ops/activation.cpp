#include "oom/ops/activation.h"

#include <ATen/Parallel.h>

#include "ops/activation_cuda.h"
#include "ops/activation_math.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

template <typename T>
void forward_rows(const GatedForward& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* gate = a.z.at<T>(r);
    const T* up = gate + a.a.width;
    T* out = a.a.at<T>(r);
    for (int64_t c = 0; c < a.a.width; ++c)
      out[c] = static_cast<T>(activate(a.kind, static_cast<float>(gate[c])).value * static_cast<float>(up[c]));
  }
}

template <typename T>
void backward_rows(const GatedBackward& a, int64_t begin, int64_t end) {
  const int64_t width = a.a.width;
  for (int64_t r = begin; r < end; ++r) {
    const T* gate = a.z.at<T>(r);
    const T* da = a.da.at<T>(r);
    T* out = a.a.at<T>(r);
    T* dgate = a.dz.at<T>(r);
    const float weight = a.row_weights != nullptr ? a.row_weights[r] : 1.0f;
    double product = 0;
    for (int64_t c = 0; c < width; ++c) {
      const float upstream = static_cast<float>(da[c]);
      const float up = static_cast<float>(gate[c + width]);
      const Activated act = activate(a.kind, static_cast<float>(gate[c]));
      const float value = rounded<T>(act.value * up);  // what the forward used
      product += static_cast<double>(upstream) * value;
      out[c] = static_cast<T>(weight * value);
      dgate[c] = static_cast<T>(weight * upstream * up * act.slope);
      dgate[c + width] = static_cast<T>(weight * upstream * act.value);
    }
    if (a.d_weights != nullptr) a.d_weights[r] = static_cast<float>(product);
  }
}

void require_halves(const at::Tensor& z, const at::Tensor& a, const char* name) {
  OOM_CHECK(z.dim() == 2 && a.dim() == 2 && z.size(0) == a.size(0) && z.size(1) == 2 * a.size(1) && z.scalar_type() == a.scalar_type() &&
                z.device() == a.device(),
            name, " of sizes ", a.sizes(), " beside gate and up of sizes ", z.sizes());
}

}  // namespace

void gated_activation_forward_out(const at::Tensor& a, const at::Tensor& z, GatedActivation kind) {
  require_halves(z, a, "activation");
  if (a.numel() == 0) return;
  const GatedForward arguments{rows_of(z), rows_of(a), kind};
  if (on_cuda(z)) {
    if constexpr (kWithCuda) gated_forward_cuda(arguments, current_stream(z));
    return;
  }
  with_type(arguments.z.element, [&](auto tag) {
    at::parallel_for(0, arguments.a.count, grain_rows(4 * arguments.a.width),
                     [&](int64_t begin, int64_t end) { forward_rows<decltype(tag)>(arguments, begin, end); });
  });
}

at::Tensor gated_activation_forward(const at::Tensor& z, GatedActivation kind) {
  OOM_CHECK(z.dim() == 2 && z.size(1) % 2 == 0, "gate and up halves must be [rows, 2 width]; got ", z.sizes());
  at::Tensor a = empty_on(z, {z.size(0), z.size(1) / 2}, z.scalar_type());
  gated_activation_forward_out(a, z, kind);
  return a;
}

void gated_activation_backward_out(const GatedGradient& out, const at::Tensor& da, const at::Tensor& z, GatedActivation kind,
                                   const at::Tensor& row_weights) {
  require_halves(z, da, "gradient");
  require_alike(out.a, da, "activation");
  require_alike(out.dz, z, "dz");
  OOM_CHECK_EQ(row_weights.defined(), out.d_weights.defined(), "row weights and their gradient come together");
  GatedBackward a{rows_of(da), rows_of(z), rows_of(out.a), rows_of(out.dz), nullptr, nullptr, kind};
  if (row_weights.defined()) {
    require_contiguous(row_weights, at::kFloat, z, "row_weights");
    require_contiguous(out.d_weights, at::kFloat, z, "d_weights");
    OOM_CHECK(row_weights.numel() == z.size(0) && out.d_weights.numel() == z.size(0), "one weight a row: ", row_weights.sizes(), " for ", z.sizes());
    a.row_weights = row_weights.data_ptr<float>();
    a.d_weights = out.d_weights.data_ptr<float>();
  }
  if (da.numel() == 0) {
    if (out.d_weights.defined()) out.d_weights.zero_();
    return;
  }
  if (on_cuda(z)) {
    if constexpr (kWithCuda) gated_backward_cuda(a, current_stream(z));
    return;
  }
  with_type(a.z.element, [&](auto tag) {
    at::parallel_for(0, a.a.count, grain_rows(8 * a.a.width), [&](int64_t begin, int64_t end) { backward_rows<decltype(tag)>(a, begin, end); });
  });
}

GatedGradient gated_activation_backward(const at::Tensor& da, const at::Tensor& z, GatedActivation kind, const at::Tensor& row_weights,
                                        bool dz_in_place) {
  GatedGradient out{empty_as(da), row_weights.defined() ? empty_on(z, {z.size(0)}, at::kFloat) : at::Tensor(), dz_in_place ? z : empty_as(z)};
  gated_activation_backward_out(out, da, z, kind, row_weights);
  return out;
}

}  // namespace oom::ops
