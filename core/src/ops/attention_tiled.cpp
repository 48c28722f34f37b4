// Attention made of matrix products, for what no library kernel serves: head dimensions above 256. Blocks of query rows against the keys they see:
// S = Q K^T in FP32, one pass over S for mask and softmax, O = P V; backward makes P again from the log-sum-exp, and dS = P (dP - rowsum(dO O)) in the
// same pass. The products accumulate in FP32; P and dS are operands of further products and take the operands' type, in the storage of S and dP. dK
// and dV are summed over blocks in FP32 and rounded once. Blocks come in one order: results repeat bit for bit.
//
// A pair is a key/value head of one sequence with its group of query heads; pairs are handled together as far as their scores fit.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ops/attention_kernels.h"
#include "ops/attention_tiled_rows.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

/// c [N,M,L] (+)= a [N,M,K] b [N,K,L], accumulated in FP32; a and b share a type, c has it or is FP32. On the CPU for tests: through FP32 copies.
void product(at::Tensor c, const at::Tensor& a, const at::Tensor& b, bool accumulate = false) {
  if (a.device().is_cpu()) {
    const at::Tensor result = at::bmm(a.to(at::kFloat), b.to(at::kFloat));
    if (accumulate)
      c.add_(result);
    else
      c.copy_(result);
  } else if (c.scalar_type() == a.scalar_type()) {
    if (accumulate)
      at::baddbmm_out(c, c, a, b);
    else
      at::bmm_out(c, a, b);
  } else {
    if (accumulate)
      at::baddbmm_out(c, c, a, b, at::kFloat);
    else
      at::bmm_out(c, a, b, at::kFloat);
  }
}

/// c [N,M,L] = a [N,M,K] b [N,K,L], c contiguous, where K is keys: a few rows against very many keys would occupy a few multiprocessors, so parts of
/// `summed_keys` are multiplied side by side and summed in FP32 in their order.
void product_over_keys(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, int64_t summed_keys) {
  const int64_t parts = a.size(2) / summed_keys, whole = parts * summed_keys, rest = a.size(2) - whole;
  if (parts < 2) return product(c, a, b);
  const at::Tensor partial = at::empty({parts, c.size(1), c.size(2)}, c.options().dtype(at::kFloat));
  for (int64_t n = 0; n < c.size(0); ++n) {
    const at::Tensor left = a.select(0, n), right = b.select(0, n);
    product(partial, left.narrow(1, 0, whole).unflatten(1, {parts, summed_keys}).transpose(0, 1), right.narrow(0, 0, whole).unflatten(0, {parts, summed_keys}));
    const at::Tensor sum = partial.sum(0, /*keepdim=*/true);
    if (rest > 0) product(sum, left.narrow(1, whole, rest).unsqueeze(0), right.narrow(0, whole, rest).unsqueeze(0), /*accumulate=*/true);
    c.narrow(0, n, 1).copy_(sum);
  }
}

/// Sequences [sequence, sequence + sequences) and key/value heads [head, head + heads), heads of one sequence unless all heads.
struct Pairs {
  int64_t sequence, sequences, head, heads;
  int64_t count() const { return sequences * heads; }
};

/// Query rows of tokens [token, token + tokens) against keys [key, key + keys).
struct Tile {
  int64_t token, tokens, key, keys;
};

class Walk {
 public:
  Walk(const AttentionOperands& operands, int64_t most_scores) : operands_(operands), shape_(tiled_shape(problem_of(operands), most_scores)) {}

  template <typename Visit>
  void for_each_pairs(const Visit& visit) const {
    const int64_t batch = operands_.batch(), heads = operands_.kv_heads();
    const int64_t at_once = shape_.pairs >= heads ? heads : shape_.pairs, sequences = std::max<int64_t>(1, shape_.pairs / heads);
    for (int64_t sequence = 0; sequence < batch; sequence += sequences)
      for (int64_t head = 0; head < heads; head += at_once)
        visit(Pairs{sequence, std::min(sequences, batch - sequence), head, std::min(at_once, heads - head)});
  }

  template <typename Visit>
  void for_each_tile(const Visit& visit) const {
    const int64_t total = operands_.tokens();
    for (int64_t token = 0; token < total; token += shape_.tokens) {
      const int64_t tokens = std::min(shape_.tokens, total - token);
      int64_t key = first_document_token(token);
      if (operands_.options.window_tokens > 0) key = std::max(key, token - operands_.options.window_tokens + 1);
      key -= key % kTiledAlignment;  // rows of operands start on 16-byte boundaries; the mask hides what was added
      const int64_t end = operands_.options.causal ? std::min(total, (token + tokens + kTiledAlignment - 1) / kTiledAlignment * kTiledAlignment) : total;
      visit(Tile{token, tokens, key, end - key});
    }
  }

  const TiledShape& shape() const { return shape_; }

 private:
  static AttentionProblem problem_of(const AttentionOperands& operands) {
    return {.device = operands.q.device().type(), .dtype = operands.q.scalar_type(), .batch = operands.batch(), .tokens = operands.tokens(), .query_heads = operands.query_heads(),
            .kv_heads = operands.kv_heads(), .head_dim = operands.head_dim(), .window_tokens = operands.options.window_tokens, .causal = operands.options.causal};
  }

  int64_t first_document_token(int64_t token) const {
    const std::vector<int32_t>& starts = operands_.options.documents.starts;
    if (starts.empty()) return 0;
    return *(std::upper_bound(starts.begin(), starts.end() - 1, token) - 1);
  }

  const AttentionOperands& operands_;
  TiledShape shape_;
};

/// Keys or values of some pairs: contiguous [pairs, S, D].
at::Tensor key_rows(const at::Tensor& x, const Pairs& pairs) {
  const at::Tensor part = x.narrow(0, pairs.sequence, pairs.sequences).narrow(2, pairs.head, pairs.heads).transpose(1, 2);
  return part.contiguous().view({pairs.count(), x.size(1), x.size(3)});
}

/// The place of a tile's query rows in a tensor [B,S,Hq,D]: a view [sequences, heads, tokens, group, D].
at::Tensor query_place(const at::Tensor& x, const Pairs& pairs, const Tile& tile, int64_t group) {
  const at::Tensor part = x.narrow(0, pairs.sequence, pairs.sequences).narrow(1, tile.token, tile.tokens).narrow(2, pairs.head * group, pairs.heads * group);
  return part.unflatten(2, {pairs.heads, group}).permute({0, 2, 1, 3, 4});
}

/// The same as rows: contiguous [pairs, tokens * group, D].
at::Tensor query_rows(const at::Tensor& x, const Pairs& pairs, const Tile& tile, int64_t group) {
  return query_place(x, pairs, tile, group).contiguous().view({pairs.count(), tile.tokens * group, x.size(3)});
}

/// FP32 scores [pairs, tokens * group, keys] in the first elements of `storage`.
at::Tensor scores_in(const at::Tensor& storage, const Pairs& pairs, const Tile& tile, int64_t group) {
  const int64_t rows = tile.tokens * group;
  return storage.narrow(0, 0, pairs.count() * rows * tile.keys).view({pairs.count(), rows, tile.keys});
}

/// What the row work left in the place of FP32 scores, in the operands' type.
at::Tensor results_in(const at::Tensor& scores, at::ScalarType type) { return type == at::kFloat ? scores : scores.view(type).narrow(2, 0, scores.size(2)); }

TiledBlock block_of(const AttentionOperands& operands, const at::Tensor& scores, const at::Tensor& lse, const Pairs& pairs, const Tile& tile) {
  const AttentionOptions& options = operands.options;
  const bool packed = !options.documents.starts.empty();
  return {.scores = scores.data_ptr<float>(),
          .lse = lse.data_ptr<float>() + (pairs.sequence * operands.query_heads() + pairs.head * operands.group()) * operands.tokens(),
          .document_starts = packed ? options.documents.starts_on_device.data_ptr<int32_t>() : nullptr,
          .documents = packed ? static_cast<int64_t>(options.documents.starts.size()) - 1 : 0,
          .pairs = pairs.count(),
          .kv_heads = pairs.heads,
          .group = operands.group(),
          .first_token = tile.token,
          .tokens = tile.tokens,
          .first_key = tile.key,
          .keys = tile.keys,
          .sequence_tokens = operands.tokens(),
          .lse_sequence_stride = operands.query_heads() * operands.tokens(),
          .window_tokens = options.window_tokens,
          .causal = options.causal,
          .scale = static_cast<float>(options.scale),
          .element = element_of(operands.q)};
}

at::Tensor score_storage(const AttentionOperands& operands, const Walk& walk) {
  const TiledShape& shape = walk.shape();
  return at::empty({shape.pairs * shape.tokens * operands.group() * shape.keys}, operands.q.options().dtype(at::kFloat));
}

}  // namespace

AttentionForward attention_forward_tiled(const AttentionOperands& operands, int64_t most_scores, int64_t summed_keys) {
  const int64_t group = operands.group(), dim = operands.head_dim();
  const Walk walk(operands, most_scores);
  at::Tensor out = at::empty(operands.q.sizes(), operands.q.options());
  at::Tensor lse = at::empty({operands.batch(), operands.query_heads(), operands.tokens()}, operands.q.options().dtype(at::kFloat));
  const at::Tensor storage = score_storage(operands, walk);
  walk.for_each_pairs([&](const Pairs& pairs) {
    const at::Tensor keys = key_rows(operands.k, pairs), values = key_rows(operands.v, pairs);
    walk.for_each_tile([&](const Tile& tile) {
      const at::Tensor scores = scores_in(storage, pairs, tile, group);
      const at::Tensor queries = query_rows(operands.q, pairs, tile, group);
      product(scores, queries, keys.narrow(1, tile.key, tile.keys).transpose(1, 2));
      const TiledBlock block = block_of(operands, scores, lse, pairs, tile);
      if (on_cuda(scores)) {
        if constexpr (kWithCuda) tiled_softmax_cuda(block, current_stream(scores));
      } else {
        tiled_softmax_cpu(block);
      }
      const at::Tensor result = at::empty(queries.sizes(), queries.options());
      product_over_keys(result, results_in(scores, queries.scalar_type()), values.narrow(1, tile.key, tile.keys), summed_keys);
      query_place(out, pairs, tile, group).copy_(result.view({pairs.sequences, pairs.heads, tile.tokens, group, dim}));
    });
  });
  return {out, lse};
}

AttentionBackward attention_backward_tiled(const AttentionOperands& operands, const AttentionSaved& saved, int64_t most_scores, int64_t summed_keys) {
  const int64_t group = operands.group(), dim = operands.head_dim();
  const at::ScalarType type = operands.q.scalar_type();
  const Walk walk(operands, most_scores);
  const at::TensorOptions fp32 = operands.q.options().dtype(at::kFloat);
  AttentionBackward gradients{at::empty(operands.q.sizes(), operands.q.options()), at::empty(operands.k.sizes(), operands.k.options()),
                              at::empty(operands.v.sizes(), operands.v.options())};
  const at::Tensor score_space = score_storage(operands, walk), gradient_space = score_storage(operands, walk);
  walk.for_each_pairs([&](const Pairs& pairs) {
    const at::Tensor keys = key_rows(operands.k, pairs), values = key_rows(operands.v, pairs);
    const at::Tensor dkeys = at::zeros(keys.sizes(), fp32), dvalues = at::zeros(values.sizes(), fp32);
    walk.for_each_tile([&](const Tile& tile) {
      const at::Tensor scores = scores_in(score_space, pairs, tile, group), dscores = scores_in(gradient_space, pairs, tile, group);
      const at::Tensor tile_keys = keys.narrow(1, tile.key, tile.keys), tile_values = values.narrow(1, tile.key, tile.keys);
      const at::Tensor queries = query_rows(operands.q, pairs, tile, group), douts = query_rows(saved.dout, pairs, tile, group);
      product(scores, queries, tile_keys.transpose(1, 2));
      product(dscores, douts, tile_values.transpose(1, 2));
      const at::Tensor outs = query_rows(saved.out, pairs, tile, group);
      const TiledBlock block = block_of(operands, scores, saved.lse, pairs, tile);
      const TiledGradient gradient{dscores.data_ptr<float>(), outs.const_data_ptr(), douts.const_data_ptr(), dim};
      if (on_cuda(scores)) {
        if constexpr (kWithCuda) tiled_gradient_cuda(block, gradient, current_stream(scores));
      } else {
        tiled_gradient_cpu(block, gradient);
      }
      const at::Tensor probability = results_in(scores, type), dscore = results_in(dscores, type);
      product(dvalues.narrow(1, tile.key, tile.keys), probability.transpose(1, 2), douts, /*accumulate=*/true);
      product(dkeys.narrow(1, tile.key, tile.keys), dscore.transpose(1, 2), queries, /*accumulate=*/true);
      const at::Tensor dqueries = at::empty(queries.sizes(), queries.options());
      product_over_keys(dqueries, dscore, tile_keys, summed_keys);
      query_place(gradients.dq, pairs, tile, group).copy_(dqueries.view({pairs.sequences, pairs.heads, tile.tokens, group, dim}));
    });
    const auto put = [&](const at::Tensor& to, const at::Tensor& from) {
      to.narrow(0, pairs.sequence, pairs.sequences).narrow(2, pairs.head, pairs.heads).copy_(from.view({pairs.sequences, pairs.heads, to.size(1), dim}).transpose(1, 2));
    };
    put(gradients.dk, dkeys);
    put(gradients.dv, dvalues);
  });
  return gradients;
}

}  // namespace oom::ops
