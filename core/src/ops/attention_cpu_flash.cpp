#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "ops/attention_kernels.h"

namespace oom::ops {

AttentionForward attention_forward_cpu_flash(const AttentionOperands& operands) {
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(operands.q.transpose(1, 2), operands.k.transpose(1, 2), operands.v.transpose(1, 2),
                                                      /*dropout_p=*/0.0, operands.options.causal, std::nullopt, operands.options.scale);
  return {out.transpose(1, 2).contiguous(), lse.contiguous()};
}

AttentionBackward attention_backward_cpu_flash(const AttentionOperands& operands, const AttentionSaved& saved) {
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      saved.dout.transpose(1, 2), operands.q.transpose(1, 2), operands.k.transpose(1, 2), operands.v.transpose(1, 2), saved.out.transpose(1, 2),
      saved.lse, /*dropout_p=*/0.0, operands.options.causal, std::nullopt, operands.options.scale);
  return {dq.transpose(1, 2).contiguous(), dk.transpose(1, 2).contiguous(), dv.transpose(1, 2).contiguous()};
}

}  // namespace oom::ops
