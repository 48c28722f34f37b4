#include "oom/ops/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "oom/ops/linear.h"

namespace oom::ops {
namespace {

void require_operands(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& targets, const LinearCrossEntropySettings& settings) {
  OOM_CHECK(h.dim() == 2 && weight.dim() == 2 && h.size(1) == weight.size(1), "hidden states ", h.sizes(), " against head ", weight.sizes());
  OOM_CHECK(h.is_contiguous() && targets.dim() == 1 && targets.size(0) == h.size(0) && targets.scalar_type() == at::kInt, "targets are int32 [",
            h.size(0), "]; got ", c10::toString(targets.scalar_type()), " ", targets.sizes());
  OOM_CHECK_GT(settings.chunk_tokens, 0, "tokens of a chunk of the head");
}

/// Calls visit(first token, token count, logits of the chunk) in token order; the logits' storage is used again.
template <typename Visit>
void for_each_chunk(const at::Tensor& h, const at::Tensor& weight, int64_t chunk_tokens, const Visit& visit) {
  const int64_t tokens = h.size(0);
  if (tokens == 0) return;
  const at::Tensor storage = at::empty({std::min(chunk_tokens, tokens), weight.size(0)}, h.options().dtype(at::kFloat));
  for (int64_t first = 0; first < tokens; first += chunk_tokens) {
    const int64_t count = std::min(chunk_tokens, tokens - first);
    const at::Tensor logits = storage.narrow(0, 0, count);
    linear_forward_out(logits, h.narrow(0, first, count), weight);
    visit(first, count, logits);
  }
}

}  // namespace

LinearCrossEntropy linear_cross_entropy(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& targets,
                                        const LinearCrossEntropySettings& settings, const GradientSink& head_sink) {
  require_operands(h, weight, targets, settings);
  const double scale = settings.valid_targets > 0 ? 1.0 / static_cast<double>(settings.valid_targets) : 0.0;
  const at::Tensor losses = at::empty({h.size(0)}, h.options().dtype(at::kFloat)), dh = at::empty_like(h);
  GradientSink sink = head_sink;
  if (sink.tensor.defined() && !sink.accumulate && h.size(0) == 0) sink.tensor.zero_();
  for_each_chunk(h, weight, settings.chunk_tokens, [&](int64_t first, int64_t count, const at::Tensor& logits) {
    // The gradient takes the logits' place: in BF16 the first half of each row.
    const at::Tensor gradient = h.scalar_type() == at::kFloat ? logits : bf16_gradient_view(logits);
    cross_entropy(losses.narrow(0, first, count), gradient, logits, targets.narrow(0, first, count), {.scale = scale, .soft_cap = settings.soft_cap});
    linear_dgrad_out(dh.narrow(0, first, count), gradient, weight);
    if (sink.tensor.defined()) linear_wgrad(sink, gradient, h.narrow(0, first, count));
    sink.accumulate = true;
  });
  return {at::sum(losses, at::kDouble), dh};
}

at::Tensor linear_cross_entropy_loss(const at::Tensor& h, const at::Tensor& weight, const at::Tensor& targets,
                                     const LinearCrossEntropySettings& settings) {
  require_operands(h, weight, targets, settings);
  const at::Tensor losses = at::empty({h.size(0)}, h.options().dtype(at::kFloat));
  for_each_chunk(h, weight, settings.chunk_tokens, [&](int64_t first, int64_t count, const at::Tensor& logits) {
    cross_entropy(losses.narrow(0, first, count), at::Tensor(), logits, targets.narrow(0, first, count), {.soft_cap = settings.soft_cap});
  });
  return at::sum(losses, at::kDouble);
}

}  // namespace oom::ops
