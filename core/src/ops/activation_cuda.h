/// Arguments of the activation and gate kernels, and their CUDA launches.
#pragma once

#include "oom/ops/flavour.h"
#include "ops/element.h"

namespace oom::ops {

struct GatedForward {
  Rows z, a;
  GatedActivation kind = GatedActivation::kSilu;
};

struct GatedBackward {
  Rows da, z, a, dz;
  const float* row_weights = nullptr;
  float* d_weights = nullptr;
  GatedActivation kind = GatedActivation::kSilu;
};

/// out = f(x, y, factor) element by element.
enum class Pointwise : int {
  kScale,             ///< factor * x
  kScaleBy,           ///< scalar * x
  kAddScaled,         ///< x + factor * y
  kSoftCap,           ///< factor * tanh(x / factor)
  kSoftCapBackward,   ///< x * (1 - (y / factor)^2)
  kSigmoidGate,       ///< x * sigmoid(y)
};

struct PointwiseMap {
  Pointwise kind = Pointwise::kScale;
  Rows out, x, y;
  Array scalar;
  float factor = 1;
};

struct SigmoidGateBackward {
  Rows dx, dgate, dy, x, gate;
};

struct RowGateForward {
  Rows x, y;
  Array gate;
};

struct RowGateBackward {
  Rows dy, x, dx;
  Array gate;
  void* dgate = nullptr;  ///< of the gate's type
};

void gated_forward_cuda(const GatedForward& arguments, Stream stream);
void gated_backward_cuda(const GatedBackward& arguments, Stream stream);
void pointwise_cuda(const PointwiseMap& arguments, Stream stream);
void sigmoid_gate_backward_cuda(const SigmoidGateBackward& arguments, Stream stream);
void row_gate_forward_cuda(const RowGateForward& arguments, Stream stream);
void row_gate_backward_cuda(const RowGateBackward& arguments, Stream stream);

}  // namespace oom::ops
