/// Arguments of the routing kernels, and their CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

constexpr int64_t kMaxExperts = 1024;

struct RouteForward {
  const void* logits = nullptr;
  Element element = Element::kFloat32;
  int64_t tokens = 0, experts = 0, top_k = 0;
  bool renormalise = true, round_weights = false;
  Array expert_scale;
  int32_t* indices = nullptr;
  float* weights = nullptr;
};

struct RouteBackward {
  const void* logits = nullptr;
  Element element = Element::kFloat32;
  int64_t tokens = 0, experts = 0, top_k = 0;
  bool renormalise = true, round_weights = false;
  Array expert_scale;
  const int32_t* indices = nullptr;
  const float* d_weights = nullptr;         ///< null: none
  const float* aux_coefficients = nullptr;  ///< null: none
  void* d_logits = nullptr;
  Sink scale_sink;
  float* scale_partials = nullptr;  ///< [partial_count, experts]; null when the scale's gradient is not wanted
  int64_t partial_count = 0;
};

struct RouteStatistics {
  const void* logits = nullptr;
  Element element = Element::kFloat32;
  int64_t tokens = 0, experts = 0, top_k = 0;
  const int32_t* indices = nullptr;
  int64_t* counts = nullptr;
  double* probability_sums = nullptr;
  float* partials = nullptr;  ///< [partial_count, experts]
  int64_t partial_count = 0;
};

/// Sets of tokens summed apart, each in order: of the shape alone, so that sums do not depend on the device.
inline int64_t route_partial_count(int64_t tokens) { return tokens < 16 ? 1 : tokens < 2048 * 16 ? tokens / 16 : 2048; }

void route_forward_cuda(const RouteForward& arguments, Stream stream);
void route_backward_cuda(const RouteBackward& arguments, Stream stream);
void route_statistics_cuda(const RouteStatistics& arguments, Stream stream);

}  // namespace oom::ops
