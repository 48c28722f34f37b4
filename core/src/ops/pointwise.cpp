// Element by element: scales, sums, soft caps, sigmoid gates.
#include <ATen/Parallel.h>

#include <cmath>

#include "oom/ops/activation.h"
#include "oom/ops/gate.h"
#include "oom/ops/scale.h"
#include "ops/activation_cuda.h"
#include "ops/activation_math.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

template <typename T, typename Function>
void map_rows(const PointwiseMap& m, Function function) {
  at::parallel_for(0, m.out.count, grain_rows(m.out.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = m.x.at<T>(r);
      const T* y = m.y.data != nullptr ? m.y.at<T>(r) : x;
      T* out = m.out.at<T>(r);
      for (int64_t c = 0; c < m.out.width; ++c) out[c] = static_cast<T>(function(static_cast<float>(x[c]), static_cast<float>(y[c])));
    }
  });
}

template <typename T>
void map_typed(const PointwiseMap& m) {
  const float factor = m.kind == Pointwise::kScaleBy ? read(m.scalar.data, m.scalar.element, 0) : m.factor;
  switch (m.kind) {
    case Pointwise::kScale:
    case Pointwise::kScaleBy: return map_rows<T>(m, [=](float x, float) { return factor * x; });
    case Pointwise::kAddScaled: return map_rows<T>(m, [=](float x, float y) { return x + factor * y; });
    case Pointwise::kSoftCap: return map_rows<T>(m, [=](float x, float) { return factor * std::tanh(x / factor); });
    case Pointwise::kSoftCapBackward: return map_rows<T>(m, [=](float x, float y) { return x * (1.0f - (y / factor) * (y / factor)); });
    case Pointwise::kSigmoidGate: return map_rows<T>(m, [](float x, float y) { return x * sigmoid(y); });
  }
}

void map(Pointwise kind, const at::Tensor& out, const at::Tensor& x, const at::Tensor& y, double factor, const at::Tensor& scalar = {}) {
  require_alike(out, x, "result");
  if (y.defined()) require_alike(y, x, "second operand");
  if (out.numel() == 0) return;
  const PointwiseMap m{kind, rows_of(out), rows_of(x), rows_of(y), array_of(scalar), static_cast<float>(factor)};
  if (on_cuda(x)) {
    if constexpr (kWithCuda) pointwise_cuda(m, current_stream(x));
    return;
  }
  with_type(m.out.element, [&](auto tag) { map_typed<decltype(tag)>(m); });
}

template <typename T>
void gate_backward_rows(const SigmoidGateBackward& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* dy = a.dy.at<T>(r);
    const T* x = a.x.at<T>(r);
    const T* gate = a.gate.at<T>(r);
    T* dx = a.dx.at<T>(r);
    T* dgate = a.dgate.at<T>(r);
    for (int64_t c = 0; c < a.x.width; ++c) {
      const float s = sigmoid(static_cast<float>(gate[c]));
      const float upstream = static_cast<float>(dy[c]);
      const float value = static_cast<float>(x[c]);
      dx[c] = static_cast<T>(upstream * s);
      dgate[c] = static_cast<T>(upstream * value * s * (1.0f - s));
    }
  }
}

template <typename T>
void row_gate_backward_rows(const RowGateBackward& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* dy = a.dy.at<T>(r);
    const T* x = a.x.at<T>(r);
    T* dx = a.dx.at<T>(r);
    const float s = sigmoid(read(a.gate.data, a.gate.element, r));
    double product = 0;
    for (int64_t c = 0; c < a.x.width; ++c) {
      product += static_cast<double>(static_cast<float>(dy[c])) * static_cast<float>(x[c]);
      dx[c] = static_cast<T>(static_cast<float>(dy[c]) * s);
    }
    write(a.dgate, a.gate.element, r, static_cast<float>(product) * s * (1.0f - s));
  }
}

void require_row_gates(const at::Tensor& gate, const at::Tensor& x) {
  OOM_CHECK(x.dim() == 2 && gate.numel() == x.size(0) && gate.device() == x.device(), "one gate a row: ", gate.sizes(), " for ", x.sizes());
}

}  // namespace

void scale_out(const at::Tensor& y, const at::Tensor& x, double factor) { map(Pointwise::kScale, y, x, {}, factor); }

void scale_by_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& scalar) {
  OOM_CHECK(scalar.numel() == 1 && scalar.device() == x.device(), "the factor must be one element on ", x.device().str(), "; got ", scalar.sizes());
  map(Pointwise::kScaleBy, y, x, {}, 1.0, scalar);
}

void add_scaled_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& addend, double factor) {
  map(Pointwise::kAddScaled, y, x, addend, factor);
}

at::Tensor add_residual(const at::Tensor& x, const at::Tensor& addend) {
  at::Tensor y = empty_as(x);
  add_scaled_out(y, x, addend);
  return y;
}

void soft_cap_forward_out(const at::Tensor& y, const at::Tensor& x, double cap) {
  OOM_CHECK_GT(cap, 0.0, "soft cap");
  map(Pointwise::kSoftCap, y, x, {}, cap);
}

void soft_cap_backward_out(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& y, double cap) {
  OOM_CHECK_GT(cap, 0.0, "soft cap");
  map(Pointwise::kSoftCapBackward, dx, dy, y, cap);
}

void sigmoid_gate_forward_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& gate) { map(Pointwise::kSigmoidGate, y, x, gate, 1.0); }

at::Tensor sigmoid_gate_forward(const at::Tensor& x, const at::Tensor& gate) {
  at::Tensor y = empty_as(x);
  sigmoid_gate_forward_out(y, x, gate);
  return y;
}

void sigmoid_gate_backward_out(const at::Tensor& dx, const at::Tensor& dgate, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  for (const at::Tensor* tensor : {&dx, &dgate, &dy, &gate}) require_alike(*tensor, x, "operand of the gate's backward");
  if (x.numel() == 0) return;
  const SigmoidGateBackward a{rows_of(dx), rows_of(dgate), rows_of(dy), rows_of(x), rows_of(gate)};
  if (on_cuda(x)) {
    if constexpr (kWithCuda) sigmoid_gate_backward_cuda(a, current_stream(x));
    return;
  }
  with_type(a.x.element, [&](auto tag) {
    at::parallel_for(0, a.x.count, grain_rows(4 * a.x.width), [&](int64_t begin, int64_t end) { gate_backward_rows<decltype(tag)>(a, begin, end); });
  });
}

at::Tensor row_gate_forward(const at::Tensor& x, const at::Tensor& gate) {
  require_row_gates(gate, x);
  at::Tensor y = empty_as(x);
  if (x.numel() == 0) return y;
  const RowGateForward a{rows_of(x), rows_of(y), array_of(gate)};
  if (on_cuda(x)) {
    if constexpr (kWithCuda) row_gate_forward_cuda(a, current_stream(x));
    return y;
  }
  with_type(a.x.element, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, a.x.count, grain_rows(a.x.width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float s = sigmoid(read(a.gate.data, a.gate.element, r));
        for (int64_t c = 0; c < a.x.width; ++c) a.y.at<T>(r)[c] = static_cast<T>(static_cast<float>(a.x.at<T>(r)[c]) * s);
      }
    });
  });
  return y;
}

RowGateGradient row_gate_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  require_alike(dy, x, "dy");
  require_row_gates(gate, x);
  RowGateGradient out{empty_as(x), empty_as(gate)};
  if (x.numel() == 0) {
    out.dgate.zero_();
    return out;
  }
  const RowGateBackward a{rows_of(dy), rows_of(x), rows_of(out.dx), array_of(gate), out.dgate.data_ptr()};
  if (on_cuda(x)) {
    if constexpr (kWithCuda) row_gate_backward_cuda(a, current_stream(x));
    return out;
  }
  with_type(a.x.element, [&](auto tag) {
    at::parallel_for(0, a.x.count, grain_rows(a.x.width), [&](int64_t begin, int64_t end) { row_gate_backward_rows<decltype(tag)>(a, begin, end); });
  });
  return out;
}

}  // namespace oom::ops
