// cuDNN by name: LibTorch's own choice between kernels prefers FlashAttention-2, about half as fast for training shapes on sm_90.
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/zeros.h>

#include "ops/attention_kernels.h"

namespace oom::ops {

AttentionForward attention_forward_cudnn(const AttentionOperands& operands) {
  const auto result = at::_scaled_dot_product_cudnn_attention(operands.q.transpose(1, 2), operands.k.transpose(1, 2), operands.v.transpose(1, 2),
                                                              /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                                              operands.options.causal, /*return_debug_mask=*/false, operands.options.scale);
  // LSE comes as [B,H,S,1].
  return {std::get<0>(result).transpose(1, 2).contiguous(),
          std::get<1>(result).reshape({operands.batch(), operands.query_heads(), operands.tokens()})};
}

AttentionBackward attention_backward_cudnn(const AttentionOperands& operands, const AttentionSaved& saved) {
  // Seeds mean nothing without dropout, but cuDNN's graph may hold their places.
  const at::Tensor seed = at::zeros({}, operands.q.options().dtype(at::kLong));
  const at::Tensor none;
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      saved.dout.transpose(1, 2), operands.q.transpose(1, 2), operands.k.transpose(1, 2), operands.v.transpose(1, 2), saved.out.transpose(1, 2),
      saved.lse.unsqueeze(-1), seed, seed, /*attn_bias=*/none, /*cum_seq_q=*/none, /*cum_seq_k=*/none, operands.tokens(), operands.tokens(),
      /*dropout_p=*/0.0, operands.options.causal, operands.options.scale);
  return {dq.transpose(1, 2).contiguous(), dk.transpose(1, 2).contiguous(), dv.transpose(1, 2).contiguous()};
}

}  // namespace oom::ops
