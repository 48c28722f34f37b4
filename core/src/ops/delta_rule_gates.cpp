#include "oom/ops/delta_rule_gates.h"

#include <ATen/Parallel.h>

#include "ops/delta_rule_gates_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

void require_operands(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_log, const at::Tensor& dt_bias) {
  OOM_CHECK_EQ(a.dim(), int64_t{2}, "gates are [tokens, heads]");
  require_alike(b, a, "b");
  for (const at::Tensor* parameter : {&a_log, &dt_bias})
    OOM_CHECK(parameter->dim() == 1 && parameter->size(0) == a.size(1) && parameter->device() == a.device(), "A_log and dt_bias have one element a head: ",
              parameter->sizes(), " for ", a.sizes());
}

template <typename T>
void backward_heads(const GateBackward& g, int64_t begin, int64_t end) {
  const int64_t heads = g.a.width;
  for (int64_t h = begin; h < end; ++h) {
    const float a_log = read(g.a_log.data, g.a_log.element, h), dt_bias = read(g.dt_bias.data, g.dt_bias.element, h);
    double sum_a_log = 0, sum_dt_bias = 0;
    for (int64_t t = 0; t < g.a.count; ++t) {
      const GateGradient one = gate_gradient(g.d_log_decay[t * heads + h], g.d_beta[t * heads + h], static_cast<float>(g.a.at<T>(t)[h]),
                                             static_cast<float>(g.b.at<T>(t)[h]), a_log, dt_bias);
      g.da.at<T>(t)[h] = static_cast<T>(one.a);
      g.db.at<T>(t)[h] = static_cast<T>(one.b);
      sum_a_log += one.a_log;
      sum_dt_bias += one.dt_bias;
    }
    if (g.a_log_sink.data != nullptr) add_to(g.a_log_sink, h, static_cast<float>(sum_a_log));
    if (g.dt_bias_sink.data != nullptr) add_to(g.dt_bias_sink, h, static_cast<float>(sum_dt_bias));
  }
}

}  // namespace

DeltaRuleGates delta_rule_gates_forward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_log, const at::Tensor& dt_bias) {
  require_operands(a, b, a_log, dt_bias);
  DeltaRuleGates out{empty_on(a, a.sizes(), at::kFloat), empty_on(a, a.sizes(), at::kFloat)};
  if (a.numel() == 0) return out;
  const GateForward g{rows_of(a), rows_of(b), array_of(a_log), array_of(dt_bias), out.log_decay.data_ptr<float>(), out.beta.data_ptr<float>()};
  if (on_cuda(a)) {
    if constexpr (kWithCuda) delta_rule_gates_forward_cuda(g, current_stream(a));
    return out;
  }
  const int64_t heads = a.size(1);
  with_type(g.a.element, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, g.a.count, grain_rows(16 * heads), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < heads; ++h) {
          const float rate = -expf(read(g.a_log.data, g.a_log.element, h));
          g.log_decay[t * heads + h] = rate * softplus(static_cast<float>(g.a.at<T>(t)[h]) + read(g.dt_bias.data, g.dt_bias.element, h));
          g.beta[t * heads + h] = sigmoid(static_cast<float>(g.b.at<T>(t)[h]));
        }
    });
  });
  return out;
}

DeltaRuleGateGradients delta_rule_gates_backward(const at::Tensor& d_log_decay, const at::Tensor& d_beta, const at::Tensor& a, const at::Tensor& b,
                                                 const at::Tensor& a_log, const at::Tensor& dt_bias, const GradientSink& a_log_sink,
                                                 const GradientSink& dt_bias_sink) {
  require_operands(a, b, a_log, dt_bias);
  for (const auto& [gradient, name] : {std::pair(&d_log_decay, "d_log_decay"), {&d_beta, "d_beta"}}) {
    require_contiguous(*gradient, at::kFloat, a, name);
    OOM_CHECK(gradient->sizes() == a.sizes(), name, " must be ", a.sizes(), "; got ", gradient->sizes());
  }
  DeltaRuleGateGradients out{empty_as(a), empty_as(b)};
  GateBackward g{.a = rows_of(a), .b = rows_of(b), .da = rows_of(out.da), .db = rows_of(out.db), .a_log = array_of(a_log), .dt_bias = array_of(dt_bias),
                 .d_log_decay = d_log_decay.data_ptr<float>(), .d_beta = d_beta.data_ptr<float>(), .a_log_sink = sink_of(a_log_sink, a.size(1)),
                 .dt_bias_sink = sink_of(dt_bias_sink, a.size(1))};
  if (a.numel() == 0) {
    for (const GradientSink* sink : {&a_log_sink, &dt_bias_sink})
      if (sink->tensor.defined() && !sink->accumulate) sink->tensor.zero_();
    return out;
  }
  if (on_cuda(a)) {
    at::Tensor partials;
    if (g.a_log_sink.data != nullptr || g.dt_bias_sink.data != nullptr) {
      partials = empty_on(a, {gate_partial_count(g.a.count), 2, g.a.width}, at::kFloat);
      g.partials = partials.data_ptr<float>();
    }
    if constexpr (kWithCuda) delta_rule_gates_backward_cuda(g, current_stream(a));
    return out;
  }
  with_type(g.a.element, [&](auto tag) {
    at::parallel_for(0, g.a.width, grain_rows(16 * g.a.count), [&](int64_t begin, int64_t end) { backward_heads<decltype(tag)>(g, begin, end); });
  });
  return out;
}

}  // namespace oom::ops
