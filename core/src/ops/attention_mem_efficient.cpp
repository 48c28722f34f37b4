// The only library kernel for FP32. It wants equal head counts, so each key/value head is expanded (a view) to its query heads, one after another:
// scratch stays that of one group. Documents are visited one after another too.
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "ops/attention_kernels.h"

namespace oom::ops {
namespace {

constexpr int64_t kCausalFromTopLeft = 1;
constexpr int64_t kLseAlignment = 32;

std::optional<int64_t> window_of(const AttentionOptions& options) {
  return options.window_tokens > 0 ? std::optional<int64_t>(options.window_tokens) : std::nullopt;
}

at::Tensor query_part(const at::Tensor& x, int64_t first, int64_t count, int64_t head, int64_t group) {
  return x.narrow(1, first, count).narrow(2, head * group, group);
}

at::Tensor expanded_part(const at::Tensor& x, int64_t first, int64_t count, int64_t head, int64_t group) {
  return x.narrow(1, first, count).narrow(2, head, 1).expand({x.size(0), count, group, x.size(3)});
}

template <typename Visit>
void for_each_part(const AttentionOperands& operands, const Visit& visit) {
  for_each_document(operands, [&](int64_t first, int64_t count) {
    for (int64_t head = 0; head < operands.kv_heads(); ++head) visit(first, count, head);
  });
}

}  // namespace

AttentionForward attention_forward_mem_efficient(const AttentionOperands& operands) {
  const int64_t group = operands.group();
  at::Tensor out = at::empty(operands.q.sizes(), operands.q.options());
  at::Tensor lse = at::empty({operands.batch(), operands.query_heads(), operands.tokens()}, operands.q.options().dtype(at::kFloat));
  for_each_part(operands, [&](int64_t first, int64_t count, int64_t head) {
    const auto result = at::_efficient_attention_forward(
        query_part(operands.q, first, count, head, group), expanded_part(operands.k, first, count, head, group),
        expanded_part(operands.v, first, count, head, group), /*bias=*/std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
        /*dropout_p=*/0.0, operands.options.causal ? kCausalFromTopLeft : 0, /*compute_log_sumexp=*/true, operands.options.scale, std::nullopt,
        window_of(operands.options));
    query_part(out, first, count, head, group).copy_(std::get<0>(result));
    // LSE is padded along the tokens to a multiple of 32.
    lse.narrow(1, head * group, group).narrow(2, first, count).copy_(std::get<1>(result).narrow(2, 0, count));
  });
  return {out, lse};
}

AttentionBackward attention_backward_mem_efficient(const AttentionOperands& operands, const AttentionSaved& saved) {
  const int64_t group = operands.group();
  constexpr int64_t kWidestRight = 256;  // above, dQ and dK come out wrong (seen on H200; dV is right)
  OOM_CHECK_LE(operands.head_dim(), kWidestRight, "head dimension of the memory-efficient backward");
  AttentionBackward gradients{at::zeros(operands.q.sizes(), operands.q.options()), at::zeros(operands.k.sizes(), operands.k.options()),
                              at::zeros(operands.v.sizes(), operands.v.options())};
  const at::Tensor seed = at::zeros({}, operands.q.options().dtype(at::kLong));
  for_each_part(operands, [&](int64_t first, int64_t count, int64_t head) {
    const int64_t padding = (kLseAlignment - count % kLseAlignment) % kLseAlignment;
    const at::Tensor lse = at::constant_pad_nd(saved.lse.narrow(1, head * group, group).narrow(2, first, count), {0, padding},
                                               std::numeric_limits<double>::infinity());
    const auto result = at::_efficient_attention_backward(
        query_part(saved.dout, first, count, head, group), query_part(operands.q, first, count, head, group),
        expanded_part(operands.k, first, count, head, group), expanded_part(operands.v, first, count, head, group), /*bias=*/std::nullopt,
        query_part(saved.out, first, count, head, group), std::nullopt, std::nullopt, count, count, lse, /*dropout_p=*/0.0, seed, seed,
        operands.options.causal ? kCausalFromTopLeft : 0, /*bias_requires_grad=*/false, operands.options.scale, std::nullopt,
        window_of(operands.options));
    query_part(gradients.dq, first, count, head, group).copy_(std::get<0>(result));
    // Sums over the query heads in FP32, rounded once.
    gradients.dk.narrow(1, first, count).narrow(2, head, 1).copy_(at::sum(std::get<1>(result), {2}, /*keepdim=*/true, at::kFloat));
    gradients.dv.narrow(1, first, count).narrow(2, head, 1).copy_(at::sum(std::get<2>(result), {2}, /*keepdim=*/true, at::kFloat));
  });
  return gradients;
}

}  // namespace oom::ops
