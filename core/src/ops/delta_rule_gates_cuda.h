/// Arguments of the delta rule's gates, their mathematics, and their CUDA launches.
#pragma once

#include "ops/activation_math.h"

namespace oom::ops {

struct GateForward {
  Rows a, b;
  Array a_log, dt_bias;
  float* log_decay = nullptr;
  float* beta = nullptr;
};

struct GateBackward {
  Rows a, b, da, db;
  Array a_log, dt_bias;
  const float* d_log_decay = nullptr;
  const float* d_beta = nullptr;
  Sink a_log_sink, dt_bias_sink;
  float* partials = nullptr;  ///< CUDA: [gate_partial_count(T), 2, Hv]; null: no sink
};

inline int64_t gate_partial_count(int64_t tokens) { return tokens < 64 ? 1 : tokens < 64 * 128 ? tokens / 64 : 128; }

/// log(1 + e^x) without overflow.
OOM_HOST_DEVICE inline float softplus(float x) { return (x > 0 ? x : 0.0f) + log1pf(expf(x > 0 ? -x : x)); }

struct GateGradient {
  float a, b, a_log, dt_bias;
};
/// One token and head: what arrives, what the gates read.
OOM_HOST_DEVICE inline GateGradient gate_gradient(float d_log_decay, float d_beta, float a, float b, float a_log, float dt_bias) {
  const float rate = -expf(a_log), beta = sigmoid(b);
  const float da = d_log_decay * rate * sigmoid(a + dt_bias);
  return {da, d_beta * beta * (1.0f - beta), d_log_decay * rate * softplus(a + dt_bias), da};
}

void delta_rule_gates_forward_cuda(const GateForward& arguments, Stream stream);
void delta_rule_gates_backward_cuda(const GateBackward& arguments, Stream stream);

}  // namespace oom::ops
