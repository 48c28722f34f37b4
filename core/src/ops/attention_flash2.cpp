// The one place that calls FlashAttention-2 inside LibTorch: its argument list changes between versions.
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/zeros.h>

#include "ops/attention_kernels.h"

namespace oom::ops {
namespace {

struct Window {
  std::optional<int64_t> left, right;  // typed: literals would fit two overloads
};

Window window_of(const AttentionOptions& options) {
  if (options.window_tokens == 0) return {};
  return {options.window_tokens - 1, 0};
}

}  // namespace

AttentionForward attention_forward_flash2(const AttentionOperands& operands) {
  const AttentionOptions& options = operands.options;
  const std::optional<double> scale = options.scale;
  const auto [left, right] = window_of(options);
  if (options.documents.starts.empty()) {
    const int64_t tokens = operands.tokens();
    const auto result = at::_flash_attention_forward(operands.q, operands.k, operands.v, std::nullopt, std::nullopt, tokens, tokens,
                                                     /*dropout_p=*/0.0, options.causal, /*return_debug_mask=*/false, scale, left, right);
    return {std::get<0>(result), std::get<1>(result)};
  }
  const std::optional<at::Tensor> starts = options.documents.starts_on_device;
  const int64_t longest = options.documents.longest_tokens;
  const auto result = at::_flash_attention_forward(operands.q.squeeze(0), operands.k.squeeze(0), operands.v.squeeze(0), starts, starts, longest,
                                                   longest, /*dropout_p=*/0.0, options.causal, /*return_debug_mask=*/false, scale, left, right);
  return {std::get<0>(result).unsqueeze(0), std::get<1>(result).unsqueeze(0)};  // LSE comes as [H,T]
}

AttentionBackward attention_backward_flash2(const AttentionOperands& operands, const AttentionSaved& saved) {
  const AttentionOptions& options = operands.options;
  const std::optional<double> scale = options.scale;
  const auto [left, right] = window_of(options);
  // Random states mean nothing without dropout.
  const at::Tensor rng_state = at::zeros({2}, operands.q.options().dtype(at::kUInt64)), unused = at::zeros({}, rng_state.options());
  if (options.documents.starts.empty()) {
    const int64_t tokens = operands.tokens();
    const auto [dq, dk, dv] = at::_flash_attention_backward(saved.dout, operands.q, operands.k, operands.v, saved.out, saved.lse, at::Tensor(),
                                                            at::Tensor(), tokens, tokens, /*dropout_p=*/0.0, options.causal, rng_state, unused,
                                                            scale, left, right);
    return {dq, dk, dv};
  }
  const at::Tensor& starts = options.documents.starts_on_device;
  const int64_t longest = options.documents.longest_tokens;
  const auto [dq, dk, dv] = at::_flash_attention_backward(saved.dout.squeeze(0), operands.q.squeeze(0), operands.k.squeeze(0),
                                                          operands.v.squeeze(0), saved.out.squeeze(0), saved.lse.squeeze(0), starts, starts,
                                                          longest, longest, /*dropout_p=*/0.0, options.causal, rng_state, unused, scale, left,
                                                          right);
  return {dq.unsqueeze(0), dk.unsqueeze(0), dv.unsqueeze(0)};
}

}  // namespace oom::ops
