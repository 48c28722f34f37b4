#include "oom/ops/cross_entropy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cross_entropy_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

float capped(float x, float cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

/// The gradient may lie in the same storage as the logits, but never ahead of what has been read.
template <typename T, typename G>
void entropy_row(const CrossEntropy& a, int64_t t) {
  const T* x = a.logits.at<T>(t);
  G* gradient = a.gradient.data != nullptr ? a.gradient.at<G>(t) : nullptr;
  const int64_t vocabulary = a.logits.width;
  const int32_t target = a.targets[t];
  if (target == kIgnoredTarget) {
    a.losses[t] = 0;
    if (gradient != nullptr) std::fill(gradient, gradient + vocabulary, static_cast<G>(0.0f));
    return;
  }
  OOM_CHECK(target >= 0 && target < vocabulary, "target ", target, " of row ", t, " is outside the vocabulary of ", vocabulary);
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < vocabulary; ++v) largest = std::max(largest, capped(static_cast<float>(x[v]), a.soft_cap));
  double sum = 0;
  for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(capped(static_cast<float>(x[v]), a.soft_cap) - largest);
  const float log_sum = static_cast<float>(std::log(sum)) + largest;
  a.losses[t] = log_sum - capped(static_cast<float>(x[target]), a.soft_cap);
  if (gradient == nullptr) return;
  for (int64_t v = 0; v < vocabulary; ++v) {
    const float z = capped(static_cast<float>(x[v]), a.soft_cap);
    float value = (std::exp(z - log_sum) - (v == target ? 1.0f : 0.0f)) * a.scale;
    if (a.soft_cap > 0) value *= 1.0f - (z / a.soft_cap) * (z / a.soft_cap);
    gradient[v] = static_cast<G>(value);
  }
}

}  // namespace

void cross_entropy(const at::Tensor& losses, const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& targets,
                   const CrossEntropySettings& settings) {
  OOM_CHECK(logits.dim() == 2, "logits must be [tokens, vocabulary]; got ", logits.sizes());
  require_contiguous(targets, at::kInt, logits, "targets");
  require_contiguous(losses, at::kFloat, logits, "losses");
  OOM_CHECK(targets.numel() == logits.size(0) && losses.numel() == logits.size(0), "targets ", targets.sizes(), " and losses ", losses.sizes(),
            " for logits ", logits.sizes());
  if (gradient.defined())
    OOM_CHECK(gradient.sizes() == logits.sizes() && gradient.device() == logits.device(), "gradient of sizes ", gradient.sizes(), " for logits ",
              logits.sizes());
  OOM_CHECK(settings.soft_cap >= 0, "soft cap ", settings.soft_cap);
  if (logits.size(0) == 0) return;
  OOM_CHECK(logits.size(1) > 0, "the vocabulary is empty");
  const CrossEntropy a{rows_of(logits),          rows_of(gradient),
                       targets.data_ptr<int32_t>(), losses.data_ptr<float>(),
                       static_cast<float>(settings.scale), static_cast<float>(settings.soft_cap)};
  if (on_cuda(logits)) {
    if constexpr (kWithCuda) cross_entropy_cuda(a, current_stream(logits));
    return;
  }
  with_type(a.logits.element, [&](auto logit) {
    with_type(a.gradient.element, [&](auto result) {
      at::parallel_for(0, a.logits.count, grain_rows(8 * a.logits.width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) entropy_row<decltype(logit), decltype(result)>(a, t);
      });
    });
  });
}

at::Tensor bf16_gradient_view(const at::Tensor& logits) {
  OOM_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kFloat && logits.stride(1) == 1, "logits must be FP32 rows; got ", logits.sizes());
  return logits.view(at::kBFloat16).narrow(1, 0, logits.size(1));
}

}  // namespace oom::ops
