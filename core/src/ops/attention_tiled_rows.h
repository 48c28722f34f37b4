/// The row work of attention made of matrix products: softmax, and the gradient of the scores. A row is one query head of one token against a
/// block's keys.
///
/// Scores are FP32 [pairs, tokens * group, keys], contiguous, where a pair is a key/value head of a sequence and the group's query heads are
/// innermost. Results of the operands' type replace them: FP32 in place, BF16 in the first half of each row's bytes.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct TiledBlock {
  float* scores = nullptr;       ///< q k^T, not scaled; becomes the probabilities
  float* lse = nullptr;          ///< of the first pair's first query head, token 0; written by forward, read by backward
  const int32_t* document_starts = nullptr;  ///< [documents + 1]; null: one document
  int64_t documents = 0;
  int64_t pairs = 0, kv_heads = 0, group = 0;        ///< kv_heads of each sequence are among the pairs
  int64_t first_token = 0, tokens = 0, first_key = 0, keys = 0, sequence_tokens = 0;
  int64_t lse_sequence_stride = 0;                   ///< floats; query heads are sequence_tokens apart
  int64_t window_tokens = 0;                         ///< 0: none
  bool causal = true;
  float scale = 1;
  Element element = Element::kFloat32;               ///< of the results

  int64_t rows() const { return pairs * tokens * group; }
};
struct TiledGradient {
  float* dprobability = nullptr; ///< dout v^T, shaped as the scores; becomes the gradient of q k^T
  const void* out = nullptr;     ///< [pairs, tokens * group, head_dim], contiguous, of the results' type
  const void* dout = nullptr;
  int64_t head_dim = 0;
};

/// Where a row's keys begin and end among a block's columns, its token and the place of its log-sum-exp.
struct TiledRow {
  int64_t begin = 0, end = 0, lse = 0;
};
OOM_HOST_DEVICE inline TiledRow tiled_row(const TiledBlock& block, int64_t row) {
  const int64_t in_pair = row % (block.tokens * block.group), pair = row / (block.tokens * block.group);
  const int64_t token = block.first_token + in_pair / block.group, head = pair % block.kv_heads * block.group + in_pair % block.group;
  int64_t first = 0;
  if (block.document_starts != nullptr) {
    int64_t low = 0, high = block.documents;  // the last document that begins at or before the token
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (block.document_starts[middle] <= token)
        low = middle;
      else
        high = middle;
    }
    first = block.document_starts[low];
  }
  if (block.window_tokens > 0 && token - block.window_tokens + 1 > first) first = token - block.window_tokens + 1;
  const int64_t end = block.causal ? token + 1 : block.sequence_tokens;
  return {first - block.first_key, end - block.first_key, pair / block.kv_heads * block.lse_sequence_stride + head * block.sequence_tokens + token};
}

/// Turns scores into probabilities, zero where a query must not look, and writes the log-sum-exp.
void tiled_softmax_cpu(const TiledBlock& block);
void tiled_softmax_cuda(const TiledBlock& block, Stream stream);
/// Turns scores into probabilities by the log-sum-exp, and dprobability into scale * P (dP - rowsum(dout out)).
void tiled_gradient_cpu(const TiledBlock& block, const TiledGradient& gradient);
void tiled_gradient_cuda(const TiledBlock& block, const TiledGradient& gradient, Stream stream);

}  // namespace oom::ops
