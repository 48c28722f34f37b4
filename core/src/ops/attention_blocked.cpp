// Attention on the CPU device in FP32 arithmetic: for each document and key/value head, blocks of query rows against every key they see.
// A block's scores fit in memory whole, so the softmax needs no running rescale.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "ops/attention_kernels.h"

namespace oom::ops {
namespace {

constexpr int64_t kScoresOfBlock = int64_t{4} << 20;  // 16 MiB of FP32

/// Query rows [begin, begin + rows) of a document see keys [first_key, first_key + keys).
struct Block {
  int64_t begin, rows, first_key, keys;
};

Block block_at(int64_t begin, int64_t document_tokens, int64_t group, const AttentionOptions& options) {
  const int64_t first_key = options.window_tokens > 0 ? std::max<int64_t>(0, begin - options.window_tokens + 1) : 0;
  const int64_t span = document_tokens - first_key;
  const int64_t fitting = std::clamp<int64_t>(kScoresOfBlock / std::max<int64_t>(1, group * span), 1, 128);
  const int64_t rows = std::min(fitting, document_tokens - begin);
  const int64_t end_key = options.causal ? begin + rows : document_tokens;
  return {begin, rows, first_key, end_key - first_key};
}

/// Rows of a block's query heads as one FP32 matrix [rows * group, D], heads innermost.
at::Tensor query_rows(const at::Tensor& x, int64_t sequence, int64_t first, int64_t rows, int64_t head, int64_t group) {
  return x.select(0, sequence).narrow(0, first, rows).narrow(1, head * group, group).to(at::kFloat).reshape({rows * group, x.size(3)});
}

at::Tensor key_rows(const at::Tensor& x, int64_t sequence, int64_t first, int64_t rows, int64_t head) {
  return x.select(0, sequence).narrow(0, first, rows).select(1, head).to(at::kFloat).contiguous();
}

/// Hides from a block's scores [rows, group, keys] the keys of columns [first, first + count) that its queries must not see.
void hide(const at::Tensor& scores, const Block& block, int64_t first, int64_t count, int64_t window_tokens) {
  const at::Tensor query = at::arange(block.begin, block.begin + block.rows, at::kLong).unsqueeze(1);
  const at::Tensor key = at::arange(block.first_key + first, block.first_key + first + count, at::kLong).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (window_tokens > 0) hidden = hidden.logical_or(key <= query - window_tokens);
  scores.narrow(2, first, count).masked_fill_(hidden.unsqueeze(1), -std::numeric_limits<float>::infinity());
}

/// Scaled scores [rows * group, keys]; -inf where a query must not look, which happens in the last `rows` columns (later tokens) and, with a window,
/// in the first `rows` ones (tokens that have left it).
at::Tensor masked_scores(const at::Tensor& queries, const at::Tensor& keys, const Block& block, int64_t group, const AttentionOptions& options) {
  const at::Tensor scores = at::mm(queries, keys.t()).mul_(options.scale);
  if (!options.causal) return scores;
  const at::Tensor by_query = scores.view({block.rows, group, block.keys});
  const int64_t edge = std::min(block.rows, block.keys);
  hide(by_query, block, block.keys - edge, edge, options.window_tokens);
  if (options.window_tokens > 0) hide(by_query, block, 0, edge, options.window_tokens);
  return scores;
}

/// Calls visit(sequence, head, first token, token count) for every document of every sequence and key/value head.
template <typename Visit>
void for_each_head(const AttentionOperands& operands, const Visit& visit) {
  for (int64_t sequence = 0; sequence < operands.batch(); ++sequence)
    for (int64_t head = 0; head < operands.kv_heads(); ++head)
      for_each_document(operands, [&](int64_t first, int64_t count) { visit(sequence, head, first, count); });
}

}  // namespace

AttentionForward attention_forward_blocked(const AttentionOperands& operands) {
  const int64_t group = operands.group(), dim = operands.head_dim();
  at::Tensor out = at::empty(operands.q.sizes(), operands.q.options());
  at::Tensor lse = at::empty({operands.batch(), operands.query_heads(), operands.tokens()}, operands.q.options().dtype(at::kFloat));
  for_each_head(operands, [&](int64_t sequence, int64_t head, int64_t first, int64_t count) {
    const at::Tensor keys = key_rows(operands.k, sequence, first, count, head), values = key_rows(operands.v, sequence, first, count, head);
    for (int64_t begin = 0; begin < count;) {
      const Block block = block_at(begin, count, group, operands.options);
      const at::Tensor queries = query_rows(operands.q, sequence, first + begin, block.rows, head, group);
      at::Tensor probability = masked_scores(queries, keys.narrow(0, block.first_key, block.keys), block, group, operands.options);
      const at::Tensor largest = at::amax(probability, {1}, /*keepdim=*/true);
      probability.sub_(largest).exp_();  // not yet divided by their sum
      const at::Tensor sum = probability.sum(1, /*keepdim=*/true);
      const at::Tensor block_out = at::mm(probability, values.narrow(0, block.first_key, block.keys)).div_(sum);
      const at::Tensor block_lse = sum.log().add_(largest);
      out.select(0, sequence).narrow(0, first + begin, block.rows).narrow(1, head * group, group).copy_(block_out.view({block.rows, group, dim}));
      lse.select(0, sequence).narrow(0, head * group, group).narrow(1, first + begin, block.rows).copy_(block_lse.view({block.rows, group}).t());
      begin += block.rows;
    }
  });
  return {out, lse};
}

AttentionBackward attention_backward_blocked(const AttentionOperands& operands, const AttentionSaved& saved) {
  const int64_t group = operands.group(), dim = operands.head_dim();
  // Tokens that no document covers have no gradient; everything else is overwritten.
  AttentionBackward gradients{at::zeros(operands.q.sizes(), operands.q.options()), at::zeros(operands.k.sizes(), operands.k.options()),
                              at::zeros(operands.v.sizes(), operands.v.options())};
  for_each_head(operands, [&](int64_t sequence, int64_t head, int64_t first, int64_t count) {
    const at::Tensor keys = key_rows(operands.k, sequence, first, count, head), values = key_rows(operands.v, sequence, first, count, head);
    at::Tensor dkeys = at::zeros_like(keys), dvalues = at::zeros_like(values);
    for (int64_t begin = 0; begin < count;) {
      const Block block = block_at(begin, count, group, operands.options);
      const at::Tensor block_keys = keys.narrow(0, block.first_key, block.keys), block_values = values.narrow(0, block.first_key, block.keys);
      const at::Tensor queries = query_rows(operands.q, sequence, first + begin, block.rows, head, group);
      const at::Tensor douts = query_rows(saved.dout, sequence, first + begin, block.rows, head, group);
      const at::Tensor outs = query_rows(saved.out, sequence, first + begin, block.rows, head, group);
      const at::Tensor block_lse =
          saved.lse.select(0, sequence).narrow(0, head * group, group).narrow(1, first + begin, block.rows).t().reshape({block.rows * group, 1});
      at::Tensor probability = masked_scores(queries, block_keys, block, group, operands.options);
      probability.sub_(block_lse).exp_();
      at::Tensor dvalue_rows = dvalues.narrow(0, block.first_key, block.keys), dkey_rows = dkeys.narrow(0, block.first_key, block.keys);
      dvalue_rows.add_(at::mm(probability.t(), douts));
      const at::Tensor delta = (douts * outs).sum(1, /*keepdim=*/true);
      at::Tensor dscores = at::mm(douts, block_values.t()).sub_(delta).mul_(probability).mul_(operands.options.scale);
      dkey_rows.add_(at::mm(dscores.t(), queries));
      gradients.dq.select(0, sequence)
          .narrow(0, first + begin, block.rows)
          .narrow(1, head * group, group)
          .copy_(at::mm(dscores, block_keys).view({block.rows, group, dim}));
      begin += block.rows;
    }
    gradients.dk.select(0, sequence).narrow(0, first, count).select(1, head).copy_(dkeys);
    gradients.dv.select(0, sequence).narrow(0, first, count).select(1, head).copy_(dvalues);
  });
  return gradients;
}

}  // namespace oom::ops
