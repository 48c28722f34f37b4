#include "oom/ops/router.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/router_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

using Row = std::array<float, kMaxExperts>;

template <typename T>
void softmax(const T* logits, int64_t experts, Row& p) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < experts; ++e) largest = std::max(largest, static_cast<float>(logits[e]));
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += p[static_cast<size_t>(e)] = std::exp(static_cast<float>(logits[e]) - largest);
  for (int64_t e = 0; e < experts; ++e) p[static_cast<size_t>(e)] /= sum;
}

/// Chooses by logits, which softmax orders alike but may collapse to equal values. What is not a number comes last.
template <typename T>
void choose(const T* logits, int64_t experts, int64_t top_k, int32_t* indices) {
  std::array<bool, kMaxExperts> taken{};
  for (int64_t k = 0; k < top_k; ++k) {
    int64_t best = -1;
    float best_key = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (taken[static_cast<size_t>(e)]) continue;
      const float logit = static_cast<float>(logits[e]);
      const float key = std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
      if (best < 0 || key > best_key) {
        best = e;
        best_key = key;
      }
    }
    taken[static_cast<size_t>(best)] = true;
    indices[k] = static_cast<int32_t>(best);
  }
}

float chosen_sum(const Row& p, const int32_t* indices, int64_t top_k) {
  float sum = 0;
  for (int64_t k = 0; k < top_k; ++k) sum += p[static_cast<size_t>(indices[k])];
  return sum;
}

template <typename T>
void forward_token(const RouteForward& a, int64_t t) {
  Row p;
  const T* logits = static_cast<const T*>(a.logits) + t * a.experts;
  int32_t* indices = a.indices + t * a.top_k;
  softmax(logits, a.experts, p);
  choose(logits, a.experts, a.top_k, indices);
  const float sum = a.renormalise ? chosen_sum(p, indices, a.top_k) : 1.0f;
  for (int64_t k = 0; k < a.top_k; ++k) {
    float weight = p[static_cast<size_t>(indices[k])] / sum;
    if (a.round_weights) weight = rounded<T>(weight);
    if (a.expert_scale.data != nullptr) weight *= read(a.expert_scale.data, a.expert_scale.element, indices[k]);
    a.weights[t * a.top_k + k] = weight;
  }
}

/// With g = dL/dp, dL/dl[e] = p[e] (g[e] - sum_f p[f] g[f]). Renormalised weights depend on the chosen logits alone: for them
/// dL/dl[e_k] = w_k (d_k - sum_j d_j w_j), which needs no cancellation of the other experts' terms.
template <typename T>
void backward_token(const RouteBackward& a, int64_t t, float* d_scale) {
  Row p;
  Row d_logits{};
  softmax(static_cast<const T*>(a.logits) + t * a.experts, a.experts, p);
  const int32_t* indices = a.indices + t * a.top_k;
  if (a.d_weights != nullptr) {
    const float divisor = a.renormalise ? chosen_sum(p, indices, a.top_k) : 1.0f;
    std::array<float, kMaxExperts> d;
    float projection = 0;
    for (int64_t k = 0; k < a.top_k; ++k) {
      const size_t e = static_cast<size_t>(indices[k]);
      const float weight = p[e] / divisor;
      float upstream = a.d_weights[t * a.top_k + k];
      if (d_scale != nullptr) d_scale[e] += upstream * (a.round_weights ? rounded<T>(weight) : weight);
      if (a.expert_scale.data != nullptr) upstream *= read(a.expert_scale.data, a.expert_scale.element, indices[k]);
      d[static_cast<size_t>(k)] = upstream;
      projection += upstream * weight;
    }
    for (int64_t k = 0; k < a.top_k; ++k) {
      const size_t e = static_cast<size_t>(indices[k]);
      d_logits[e] = a.renormalise ? p[e] / divisor * (d[static_cast<size_t>(k)] - projection) : p[e] * d[static_cast<size_t>(k)];
    }
    if (!a.renormalise)
      for (int64_t e = 0; e < a.experts; ++e) d_logits[static_cast<size_t>(e)] -= p[static_cast<size_t>(e)] * projection;
  }
  if (a.aux_coefficients != nullptr) {
    float mean = 0;
    for (int64_t e = 0; e < a.experts; ++e) mean += p[static_cast<size_t>(e)] * a.aux_coefficients[e];
    for (int64_t e = 0; e < a.experts; ++e) d_logits[static_cast<size_t>(e)] += p[static_cast<size_t>(e)] * (a.aux_coefficients[e] - mean);
  }
  T* out = static_cast<T*>(a.d_logits) + t * a.experts;
  for (int64_t e = 0; e < a.experts; ++e) out[e] = static_cast<T>(d_logits[static_cast<size_t>(e)]);
}

void backward_cpu(const RouteBackward& a) {
  with_type(a.element, [&](auto tag) {
    at::parallel_for(0, a.partial_count, grain_rows(16 * a.experts), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        float* partial = a.scale_partials != nullptr ? a.scale_partials + s * a.experts : nullptr;
        if (partial != nullptr) std::fill(partial, partial + a.experts, 0.0f);
        for (int64_t t = s; t < a.tokens; t += a.partial_count) backward_token<decltype(tag)>(a, t, partial);
      }
    });
  });
  if (a.scale_partials == nullptr) return;
  for (int64_t e = 0; e < a.experts; ++e) {
    float sum = 0;
    for (int64_t s = 0; s < a.partial_count; ++s) sum += a.scale_partials[s * a.experts + e];
    add_to(a.scale_sink, e, sum);
  }
}

void statistics_cpu(const RouteStatistics& a) {
  for (int64_t i = 0; i < a.tokens * a.top_k; ++i) ++a.counts[a.indices[i]];
  with_type(a.element, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, a.partial_count, grain_rows(16 * a.experts), [&](int64_t begin, int64_t end) {
      Row p;
      for (int64_t s = begin; s < end; ++s) {
        float* partial = a.partials + s * a.experts;
        std::fill(partial, partial + a.experts, 0.0f);
        for (int64_t t = s; t < a.tokens; t += a.partial_count) {
          softmax(static_cast<const T*>(a.logits) + t * a.experts, a.experts, p);
          for (int64_t e = 0; e < a.experts; ++e) partial[e] += p[static_cast<size_t>(e)];
        }
      }
    });
  });
  for (int64_t e = 0; e < a.experts; ++e)
    for (int64_t s = 0; s < a.partial_count; ++s) a.probability_sums[e] += a.partials[s * a.experts + e];
}

void require_logits(const at::Tensor& logits, int64_t top_k) {
  OOM_CHECK(logits.dim() == 2 && logits.is_contiguous(), "router logits must be contiguous [tokens, experts]; got ", logits.sizes());
  OOM_CHECK(top_k >= 1 && top_k <= logits.size(1) && logits.size(1) <= kMaxExperts, "top ", top_k, " of ", logits.size(1), " experts; at most ",
            kMaxExperts, " are supported");
}

Array scale_of(const at::Tensor& expert_scale, const at::Tensor& logits) {
  const Array scale = array_of(expert_scale);
  OOM_CHECK(scale.data == nullptr || scale.size == logits.size(1), "expert_scale of ", scale.size, " elements for ", logits.size(1), " experts");
  return scale;
}

}  // namespace

Routing route_forward(const at::Tensor& logits, const RouterSettings& settings, const at::Tensor& expert_scale) {
  require_logits(logits, settings.top_k);
  const int64_t tokens = logits.size(0);
  Routing routing{empty_on(logits, {tokens, settings.top_k}, at::kInt), empty_on(logits, {tokens, settings.top_k}, at::kFloat)};
  const RouteForward a{logits.data_ptr(),       element_of(logits),          tokens,
                       logits.size(1),          settings.top_k,              settings.renormalise,
                       settings.round_weights,  scale_of(expert_scale, logits), routing.indices.data_ptr<int32_t>(),
                       routing.weights.data_ptr<float>()};
  if (tokens == 0) return routing;
  if (on_cuda(logits)) {
    if constexpr (kWithCuda) route_forward_cuda(a, current_stream(logits));
    return routing;
  }
  with_type(a.element, [&](auto tag) {
    at::parallel_for(0, tokens, grain_rows(8 * a.experts), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) forward_token<decltype(tag)>(a, t);
    });
  });
  return routing;
}

at::Tensor route_backward(const RoutingGradient& gradient, const at::Tensor& logits, const Routing& routing, const RouterSettings& settings,
                          const at::Tensor& expert_scale, const GradientSink& scale_sink) {
  require_logits(logits, settings.top_k);
  require_contiguous(routing.indices, at::kInt, logits, "routing.indices");
  const int64_t tokens = logits.size(0);
  RouteBackward a;
  a.logits = logits.data_ptr();
  a.element = element_of(logits);
  a.tokens = tokens;
  a.experts = logits.size(1);
  a.top_k = settings.top_k;
  a.renormalise = settings.renormalise;
  a.round_weights = settings.round_weights;
  a.expert_scale = scale_of(expert_scale, logits);
  a.indices = routing.indices.data_ptr<int32_t>();
  OOM_CHECK_EQ(routing.indices.numel(), tokens * a.top_k, "routing of other tokens");
  if (gradient.d_weights.defined()) {
    require_contiguous(gradient.d_weights, at::kFloat, logits, "d_weights");
    OOM_CHECK_EQ(gradient.d_weights.numel(), tokens * a.top_k, "d_weights of other tokens");
    a.d_weights = gradient.d_weights.data_ptr<float>();
  }
  if (gradient.aux_coefficients.defined()) {
    require_contiguous(gradient.aux_coefficients, at::kFloat, logits, "aux_coefficients");
    OOM_CHECK_EQ(gradient.aux_coefficients.numel(), a.experts, "one coefficient an expert");
    a.aux_coefficients = gradient.aux_coefficients.data_ptr<float>();
  }
  a.scale_sink = sink_of(scale_sink, a.experts);
  OOM_CHECK(a.scale_sink.data == nullptr || a.expert_scale.data != nullptr, "no expert_scale to make a gradient for");
  at::Tensor d_logits = empty_as(logits);
  if (tokens == 0) {
    if (a.scale_sink.data != nullptr && !a.scale_sink.accumulate) scale_sink.tensor.zero_();
    return d_logits;
  }
  a.d_logits = d_logits.data_ptr();
  a.partial_count = route_partial_count(tokens);
  at::Tensor partials;
  if (a.scale_sink.data != nullptr) {
    partials = empty_on(logits, {a.partial_count, a.experts}, at::kFloat);
    a.scale_partials = partials.data_ptr<float>();
  }
  if (on_cuda(logits)) {
    if constexpr (kWithCuda) route_backward_cuda(a, current_stream(logits));
  } else {
    backward_cpu(a);
  }
  return d_logits;
}

RoutingStatistics no_routing_statistics(int64_t experts, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions().device(device);
  return {at::zeros({experts}, options.dtype(at::kLong)), at::zeros({experts}, options.dtype(at::kDouble))};
}

void add_routing_statistics(const RoutingStatistics& statistics, const at::Tensor& logits, const at::Tensor& indices) {
  require_contiguous(indices, at::kInt, logits, "routing indices");
  require_contiguous(statistics.counts, at::kLong, logits, "statistics.counts");
  require_contiguous(statistics.probability_sums, at::kDouble, logits, "statistics.probability_sums");
  if (logits.size(0) == 0) return;
  const int64_t top_k = indices.numel() / logits.size(0);
  require_logits(logits, top_k);
  OOM_CHECK(statistics.counts.numel() == logits.size(1) && statistics.probability_sums.numel() == logits.size(1), "statistics of other experts");
  const int64_t partial_count = route_partial_count(logits.size(0));
  const at::Tensor partials = empty_on(logits, {partial_count, logits.size(1)}, at::kFloat);
  const RouteStatistics a{logits.data_ptr(),
                          element_of(logits),
                          logits.size(0),
                          logits.size(1),
                          top_k,
                          indices.data_ptr<int32_t>(),
                          statistics.counts.data_ptr<int64_t>(),
                          statistics.probability_sums.data_ptr<double>(),
                          partials.data_ptr<float>(),
                          partial_count};
  if (on_cuda(logits)) {
    if constexpr (kWithCuda) route_statistics_cuda(a, current_stream(logits));
  } else {
    statistics_cpu(a);
  }
}

}  // namespace oom::ops
