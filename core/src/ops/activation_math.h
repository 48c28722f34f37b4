/// Values and slopes of the activations, for the CPU and for kernels.
#pragma once

#include <cmath>

#include "oom/ops/flavour.h"
#include "ops/element.h"

namespace oom::ops {

struct Activated {
  float value;
  float slope;
};

OOM_HOST_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

OOM_HOST_DEVICE inline Activated activate(GatedActivation kind, float g) {
  if (kind == GatedActivation::kSilu) {
    const float s = sigmoid(g);
    return {g * s, s * (1.0f + g * (1.0f - s))};
  }
  constexpr float kScale = 0.7978845608028654f;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const float t = tanhf(kScale * (g + kCubic * g * g * g));
  const float inner_slope = kScale * (1.0f + 3.0f * kCubic * g * g);
  // 1 - t^2 as a product: where t is near -1 or 1 the square has lost it.
  return {0.5f * g * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * g * (1.0f - t) * (1.0f + t) * inner_slope};
}

}  // namespace oom::ops
