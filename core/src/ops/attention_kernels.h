/// The backends of attention, one pair of functions each. Shapes and layouts are those of oom/ops/attention.h, already checked.
#pragma once

#include "oom/ops/attention.h"

namespace oom::ops {

struct AttentionOperands {
  const at::Tensor& q;
  const at::Tensor& k;
  const at::Tensor& v;
  const AttentionOptions& options;
  int64_t batch() const { return q.size(0); }
  int64_t tokens() const { return q.size(1); }
  int64_t query_heads() const { return q.size(2); }
  int64_t kv_heads() const { return k.size(2); }
  int64_t group() const { return query_heads() / kv_heads(); }
  int64_t head_dim() const { return q.size(3); }
};

/// What backward has beside the operands; `lse` is [B,Hq,S].
struct AttentionSaved {
  const at::Tensor& dout;
  const at::Tensor& out;
  const at::Tensor& lse;
};

AttentionForward attention_forward_blocked(const AttentionOperands& operands);
AttentionBackward attention_backward_blocked(const AttentionOperands& operands, const AttentionSaved& saved);

AttentionForward attention_forward_cpu_flash(const AttentionOperands& operands);
AttentionBackward attention_backward_cpu_flash(const AttentionOperands& operands, const AttentionSaved& saved);

AttentionForward attention_forward_cudnn(const AttentionOperands& operands);
AttentionBackward attention_backward_cudnn(const AttentionOperands& operands, const AttentionSaved& saved);

AttentionForward attention_forward_flash2(const AttentionOperands& operands);
AttentionBackward attention_backward_flash2(const AttentionOperands& operands, const AttentionSaved& saved);

AttentionForward attention_forward_mem_efficient(const AttentionOperands& operands);
AttentionBackward attention_backward_mem_efficient(const AttentionOperands& operands, const AttentionSaved& saved);

/// FP32: 512 MiB in forward, with their gradients 1 GiB in backward. Fewer rows against many keys are bound by reading the keys.
constexpr int64_t kTiledScores = int64_t{128} << 20;
constexpr int64_t kTiledSummedKeys = 8192;           ///< of a product over keys; parts of so many keys are multiplied side by side, then summed
constexpr int64_t kTiledAlignment = 8;               ///< of a block's first key
/// The largest block of tiled attention: key/value heads of sequences handled together, query tokens, and the keys they see.
struct TiledShape {
  int64_t pairs, tokens, keys;
};
/// At most `most_scores` at once, unless one token's are more.
TiledShape tiled_shape(const AttentionProblem& problem, int64_t most_scores = kTiledScores);
AttentionForward attention_forward_tiled(const AttentionOperands& operands, int64_t most_scores = kTiledScores, int64_t summed_keys = kTiledSummedKeys);
AttentionBackward attention_backward_tiled(const AttentionOperands& operands, const AttentionSaved& saved, int64_t most_scores = kTiledScores,
                                           int64_t summed_keys = kTiledSummedKeys);

/// Calls visit(first token, token count) for every document that has tokens; for the whole sequence where there are no documents.
template <typename Visit>
void for_each_document(const AttentionOperands& operands, const Visit& visit) {
  const std::vector<int32_t>& starts = operands.options.documents.starts;
  if (starts.empty()) {
    visit(int64_t{0}, operands.tokens());
    return;
  }
  for (size_t i = 0; i + 1 < starts.size(); ++i)
    if (starts[i + 1] > starts[i]) visit(int64_t{starts[i]}, int64_t{starts[i + 1]} - starts[i]);
}

}  // namespace oom::ops
