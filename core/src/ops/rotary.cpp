#include "oom/ops/rotary.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "ops/rotary_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

template <typename T>
void fill_table(const RotaryTableFill& a) {
  at::parallel_for(0, a.tokens, grain_rows(16 * a.half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < a.half; ++i) {
        const float angle = static_cast<float>(a.positions[t]) * a.inverse[i];
        static_cast<T*>(a.cosine)[t * a.half + i] = static_cast<T>(std::cos(angle) * a.scaling);
        static_cast<T*>(a.sine)[t * a.half + i] = static_cast<T>(std::sin(angle) * a.scaling);
      }
  });
}

template <typename T>
void rotate_rows(const Rotation& a) {
  at::parallel_for(0, a.x.count, grain_rows(a.x.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = a.x.at<T>(r);
      T* y = a.y.at<T>(r);
      const T* cosine = static_cast<const T*>(a.cosine) + r / a.heads * a.half;
      const T* sine = static_cast<const T*>(a.sine) + r / a.heads * a.half;
      for (int64_t i = 0; i < a.half; ++i) {
        const float c = static_cast<float>(cosine[i]);
        const float s = a.inverse ? -static_cast<float>(sine[i]) : static_cast<float>(sine[i]);
        const float first = static_cast<float>(x[i]);
        const float second = static_cast<float>(x[i + a.half]);
        y[i] = static_cast<T>(first * c - second * s);
        y[i + a.half] = static_cast<T>(second * c + first * s);
      }
      if (y != x)
        for (int64_t i = 2 * a.half; i < a.x.width; ++i) y[i] = x[i];
    }
  });
}

void rotate(const at::Tensor& y, const at::Tensor& x, const RotaryTable& table, bool inverse) {
  OOM_CHECK_EQ(x.dim(), 3, "rotary operands are [tokens, heads, head_dim]");
  require_alike(y, x, "rotary result");
  require_contiguous(table.cosine, x.scalar_type(), x, "cosine table");
  require_contiguous(table.sine, x.scalar_type(), x, "sine table");
  OOM_CHECK(table.cosine.dim() == 2 && table.cosine.sizes() == table.sine.sizes() && table.cosine.size(0) == x.size(0) &&
                2 * table.cosine.size(1) <= x.size(2),
            "table of sizes ", table.cosine.sizes(), " for heads of sizes ", x.sizes());
  if (x.numel() == 0) return;
  const Rotation a{rows_of(x), rows_of(y), table.cosine.data_ptr(), table.sine.data_ptr(), x.size(1), table.cosine.size(1), inverse};
  if (on_cuda(x)) {
    if constexpr (kWithCuda) rotate_cuda(a, current_stream(x));
    return;
  }
  with_type(a.x.element, [&](auto tag) { rotate_rows<decltype(tag)>(a); });
}

}  // namespace

RotaryTable rotary_table(const RotaryFrequencies& frequencies, const at::Tensor& positions, at::ScalarType type) {
  require_contiguous(positions, at::kInt, positions, "positions");
  OOM_CHECK(frequencies.inverse.scalar_type() == at::kFloat && frequencies.inverse.dim() == 1 && frequencies.inverse.is_cpu(), "inverse frequencies must be FP32 [d/2] on the CPU");
  const at::Tensor inverse = frequencies.inverse.contiguous();
  const int64_t tokens = positions.numel();
  const int64_t half = inverse.numel();
  RotaryTable table{empty_on(positions, {tokens, half}, type), empty_on(positions, {tokens, half}, type)};
  const RotaryTableFill a{positions.data_ptr<int32_t>(), inverse.data_ptr<float>(), table.cosine.data_ptr(), table.sine.data_ptr(),
                          element_of(table.cosine),     tokens,                    half,                    static_cast<float>(frequencies.scaling)};
  if (tokens == 0) return table;
  if (on_cuda(positions)) {
    if constexpr (kWithCuda) rotary_table_cuda(a, current_stream(positions));
    return table;
  }
  with_type(a.element, [&](auto tag) { fill_table<decltype(tag)>(a); });
  return table;
}

void rotary_forward_out(const at::Tensor& y, const at::Tensor& x, const RotaryTable& table) { rotate(y, x, table, false); }
void rotary_backward_out(const at::Tensor& dx, const at::Tensor& dy, const RotaryTable& table) { rotate(dx, dy, table, true); }

}  // namespace oom::ops
