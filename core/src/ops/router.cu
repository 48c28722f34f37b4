#include <climits>

#include "ops/column_sum.cuh"
#include "ops/router_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kWarps = 4;

/// A warp holds a token's logits: lane l has experts l, l + 32, ... in kValues registers.
template <typename T, int kValues>
__device__ void load_logits(const void* logits, int64_t token, int64_t experts, int lane, float (&value)[kValues]) {
  const T* row = static_cast<const T*>(logits) + token * experts;
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    const int64_t e = lane + 32 * j;
    value[j] = e < experts ? to_float(row[e]) : -INFINITY;
  }
}

/// Turns logits into probabilities; experts beyond the last get 0.
template <int kValues>
__device__ void softmax(int64_t experts, int lane, float (&value)[kValues], float& largest, float& sum) {
  largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kValues; ++j) largest = fmaxf(largest, value[j]);
  largest = warp_max(largest);
  sum = 0;
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    value[j] = lane + 32 * j < experts ? expf(value[j] - largest) : 0.0f;
    sum += value[j];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int j = 0; j < kValues; ++j) value[j] /= sum;
}

template <typename T, int kValues>
__global__ void route_forward_kernel(RouteForward a) {
  const int lane = threadIdx.x % 32;
  const int64_t token = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (token >= a.tokens) return;
  float key[kValues], p[kValues];
  load_logits<T>(a.logits, token, a.experts, lane, key);
#pragma unroll
  for (int j = 0; j < kValues; ++j) p[j] = key[j];
  float largest, sum;
  softmax(a.experts, lane, p, largest, sum);
  unsigned int taken = 0;
  float chosen_sum = 0;
  float* weights = a.weights + token * a.top_k;
  int32_t* indices = a.indices + token * a.top_k;
  for (int64_t k = 0; k < a.top_k; ++k) {
    // Largest logit, then lowest expert; what is not a number counts as minus infinity but stays eligible, an expert taken or missing does not.
    float best = -INFINITY;
    int expert = INT_MAX;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int e = lane + 32 * j;
      const float candidate = isnan(key[j]) ? -INFINITY : key[j];
      if (e < a.experts && (taken >> j & 1u) == 0 && (expert == INT_MAX || candidate > best)) {
        best = candidate;
        expert = e;
      }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, distance);
      const int other_expert = __shfl_xor_sync(0xffffffffu, expert, distance);
      if (other > best || (other == best && other_expert < expert)) {
        best = other;
        expert = other_expert;
      }
    }
    if (expert % 32 == lane) taken |= 1u << (expert / 32);
    const float probability = expf(best - largest) / sum;
    chosen_sum += probability;
    if (lane == 0) {
      indices[k] = expert;
      weights[k] = probability;
    }
  }
  __syncwarp();
  for (int64_t k = lane; k < a.top_k; k += 32) {
    float weight = a.renormalise ? weights[k] / chosen_sum : weights[k];
    if (a.round_weights) weight = rounded<T>(weight);
    if (a.expert_scale.data != nullptr) weight *= read(a.expert_scale.data, a.expert_scale.element, indices[k]);
    weights[k] = weight;
  }
}

/// A warp takes tokens s, s + partial_count, ...; shared memory a warp: probabilities, gradients, and sums for the scale's gradient.
template <typename T, int kValues>
__global__ void route_backward_kernel(RouteBackward a) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t set = blockIdx.x * int64_t{kWarps} + warp;
  if (set >= a.partial_count) return;
  float* probability = shared + warp * 3 * a.experts;
  float* gradient = probability + a.experts;
  float* scale_sums = gradient + a.experts;
  for (int64_t e = lane; e < a.experts; e += 32) scale_sums[e] = 0;
  for (int64_t token = set; token < a.tokens; token += a.partial_count) {
    float p[kValues], largest, sum;
    load_logits<T>(a.logits, token, a.experts, lane, p);
    softmax(a.experts, lane, p, largest, sum);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int64_t e = lane + 32 * j;
      if (e >= a.experts) continue;
      probability[e] = p[j];
      gradient[e] = 0;
    }
    __syncwarp();
    float projection = 0;
    if (a.d_weights != nullptr) {
      const int32_t* indices = a.indices + token * a.top_k;
      const float* d_weights = a.d_weights + token * a.top_k;
      float divisor = 1.0f;
      if (a.renormalise) {
        divisor = 0;
        for (int64_t k = lane; k < a.top_k; k += 32) divisor += probability[indices[k]];
        divisor = warp_sum(divisor);
      }
      for (int64_t k = lane; k < a.top_k; k += 32) {
        const int e = indices[k];
        const float weight = probability[e] / divisor;
        float upstream = d_weights[k];
        if (a.scale_partials != nullptr) scale_sums[e] += upstream * (a.round_weights ? rounded<T>(weight) : weight);
        if (a.expert_scale.data != nullptr) upstream *= read(a.expert_scale.data, a.expert_scale.element, e);
        gradient[e] = upstream;
        projection += upstream * weight;
      }
      projection = warp_sum(projection);
      for (int64_t k = lane; k < a.top_k; k += 32) {
        const int e = indices[k];
        gradient[e] = a.renormalise ? probability[e] / divisor * (gradient[e] - projection) : probability[e] * gradient[e];
      }
      if (a.renormalise) projection = 0;
      __syncwarp();
    }
    float mean = 0;
    if (a.aux_coefficients != nullptr) {
#pragma unroll
      for (int j = 0; j < kValues; ++j)
        if (lane + 32 * j < a.experts) mean += p[j] * a.aux_coefficients[lane + 32 * j];
      mean = warp_sum(mean);
    }
    T* out = static_cast<T*>(a.d_logits) + token * a.experts;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int64_t e = lane + 32 * j;
      if (e >= a.experts) continue;
      float value = gradient[e] - p[j] * projection;
      if (a.aux_coefficients != nullptr) value += p[j] * (a.aux_coefficients[e] - mean);
      out[e] = from_float<T>(value);
    }
  }
  if (a.scale_partials == nullptr) return;
  __syncwarp();
  for (int64_t e = lane; e < a.experts; e += 32) a.scale_partials[set * a.experts + e] = scale_sums[e];
}

template <typename T, int kValues>
__global__ void route_statistics_kernel(RouteStatistics a) {
  extern __shared__ int counts[];
  for (int64_t e = threadIdx.x; e < a.experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int64_t set = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (set < a.partial_count) {
    float sums[kValues] = {};
    for (int64_t token = set; token < a.tokens; token += a.partial_count) {
      float p[kValues], largest, sum;
      load_logits<T>(a.logits, token, a.experts, lane, p);
      softmax(a.experts, lane, p, largest, sum);
#pragma unroll
      for (int j = 0; j < kValues; ++j) sums[j] += p[j];
      for (int64_t k = lane; k < a.top_k; k += 32) atomicAdd(&counts[a.indices[token * a.top_k + k]], 1);
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j)
      if (lane + 32 * j < a.experts) a.partials[set * a.experts + lane + 32 * j] = sums[j];
  }
  __syncthreads();
  // Whole numbers: their sum does not depend on the order.
  for (int64_t e = threadIdx.x; e < a.experts; e += blockDim.x)
    if (counts[e] != 0) atomicAdd(reinterpret_cast<unsigned long long*>(a.counts + e), static_cast<unsigned long long>(counts[e]));
}

struct AddFinish {
  double* sums;
  __device__ void operator()(int64_t column, double sum) const { sums[column] += sum; }
};

/// Calls `body` with a value of the logits' type and the registers a lane needs for them.
template <typename Body>
void with_values(Element element, int64_t experts, Body&& body) {
  with_device_type(element, [&](auto tag) {
    if (experts <= 32)
      body(tag, std::integral_constant<int, 1>{});
    else if (experts <= 64)
      body(tag, std::integral_constant<int, 2>{});
    else if (experts <= 128)
      body(tag, std::integral_constant<int, 4>{});
    else if (experts <= 256)
      body(tag, std::integral_constant<int, 8>{});
    else if (experts <= 512)
      body(tag, std::integral_constant<int, 16>{});
    else
      body(tag, std::integral_constant<int, 32>{});
  });
}

}  // namespace

void route_forward_cuda(const RouteForward& a, Stream stream) {
  with_values(a.element, a.experts, [&](auto tag, auto values) {
    route_forward_kernel<decltype(tag), values()><<<blocks_for(a.tokens, kWarps), 32 * kWarps, 0, stream>>>(a);
  });
  check_launch("route_forward");
}

void route_backward_cuda(const RouteBackward& a, Stream stream) {
  const size_t shared_bytes = sizeof(float) * 3 * kWarps * static_cast<size_t>(a.experts);
  with_values(a.element, a.experts, [&](auto tag, auto values) {
    route_backward_kernel<decltype(tag), values()><<<blocks_for(a.partial_count, kWarps), 32 * kWarps, shared_bytes, stream>>>(a);
  });
  check_launch("route_backward");
  if (a.scale_partials != nullptr) column_sum<float>(a.scale_partials, a.partial_count, a.experts, SinkFinish{a.scale_sink}, stream);
}

void route_statistics_cuda(const RouteStatistics& a, Stream stream) {
  with_values(a.element, a.experts, [&](auto tag, auto values) {
    route_statistics_kernel<decltype(tag), values()>
        <<<blocks_for(a.partial_count, kWarps), 32 * kWarps, sizeof(int) * static_cast<size_t>(a.experts), stream>>>(a);
  });
  check_launch("route_statistics");
  column_sum<double>(a.partials, a.partial_count, a.experts, AddFinish{a.probability_sums}, stream);
}

}  // namespace oom::ops
