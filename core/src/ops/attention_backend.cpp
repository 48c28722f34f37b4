#include <algorithm>
#include <atomic>

#include "ops/attention_kernels.h"

namespace oom::ops {
namespace {

std::atomic<bool> g_deterministic{false};

}  // namespace

void set_deterministic_attention(bool deterministic) { g_deterministic = deterministic; }
bool deterministic_attention() { return g_deterministic; }

std::string_view name_of(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kCpuFlash: return "LibTorch's CPU kernel";
    case AttentionBackend::kCpuBlocked: return "blocks of query rows on the CPU";
    case AttentionBackend::kCudnn: return "cuDNN";
    case AttentionBackend::kFlash2: return "FlashAttention-2";
    case AttentionBackend::kMemEfficient: return "memory-efficient attention";
    case AttentionBackend::kTiled: return "matrix products over blocks of query rows";
  }
  return "unknown";
}

AttentionBackend choose_attention_backend(const AttentionProblem& problem, bool backward) {
  const bool windowed = problem.window_tokens > 0 && problem.window_tokens < problem.tokens;
  const bool plain = problem.causal && !windowed && !problem.documents;
  if (problem.device == c10::DeviceType::CPU) {
    // LibTorch's CPU kernel rounds probabilities and partial sums to BF16 (dK off by 5e-2 where 4e-3 is one rounding), so it serves FP32 alone.
    return plain && problem.dtype == at::kFloat ? AttentionBackend::kCpuFlash : AttentionBackend::kCpuBlocked;
  }
  // The memory-efficient kernel's dQ and dK are wrong above 256 (seen on H200; dV is right), and the others end there.
  if (problem.head_dim > 256 || (backward && problem.deterministic)) return AttentionBackend::kTiled;
  if (problem.dtype != at::kBFloat16 || problem.head_dim % 8 != 0) return AttentionBackend::kMemEfficient;
  // cuDNN indexes a batch with 32 bits, and its plans do not repay themselves on short sequences.
  const bool far_batches = problem.batch > 1 && problem.tokens * problem.query_heads * problem.head_dim >= int64_t{1} << 31;
  const bool cudnn = plain && problem.compute_capability >= 90 && problem.tokens >= 128 && !far_batches;
  return cudnn ? AttentionBackend::kCudnn : AttentionBackend::kFlash2;
}

TiledShape tiled_shape(const AttentionProblem& problem, int64_t most_scores) {
  constexpr int64_t kMostTokens = 256;  // half a block's width is work for nothing along the diagonal
  const int64_t group = problem.query_heads / std::max<int64_t>(problem.kv_heads, 1), all_pairs = problem.batch * problem.kv_heads;
  const auto keys_of = [&](int64_t tokens) {
    const bool windowed = problem.causal && problem.window_tokens > 0;
    return windowed ? std::min(problem.tokens, tokens + problem.window_tokens - 1 + 2 * (kTiledAlignment - 1)) : problem.tokens;
  };
  TiledShape shape{.pairs = 1, .tokens = std::min(problem.tokens, kMostTokens), .keys = 0};
  while (shape.tokens > 1 && shape.tokens * group * keys_of(shape.tokens) > most_scores) shape.tokens /= 2;
  shape.keys = keys_of(shape.tokens);
  shape.pairs = std::clamp<int64_t>(most_scores / std::max<int64_t>(1, shape.tokens * group * shape.keys), 1, all_pairs);
  if (shape.pairs > problem.kv_heads) shape.pairs -= shape.pairs % problem.kv_heads;  // whole sequences
  return shape;
}

int64_t attention_workspace_bytes(const AttentionProblem& problem, bool backward) {
  const int64_t element_bytes = problem.dtype == at::kBFloat16 ? 2 : 4;
  const int64_t group = problem.query_heads / std::max<int64_t>(problem.kv_heads, 1);
  const int64_t rows = problem.batch * problem.tokens;
  const int64_t query_elements = rows * problem.query_heads * problem.head_dim, group_elements = rows * group * problem.head_dim;
  const int64_t softmax_bytes = rows * problem.query_heads * 4;
  switch (choose_attention_backend(problem, backward)) {
    case AttentionBackend::kCudnn: return backward ? query_elements * 8 + softmax_bytes : 0;
    case AttentionBackend::kFlash2: {
      if (!backward) return 0;
      const int64_t expanded = problem.query_heads == problem.kv_heads ? 0 : 2 * query_elements * element_bytes;
      return query_elements * 4 + expanded + softmax_bytes;  // FP32 dQ, expanded dK and dV, rowsum(dO o O)
    }
    case AttentionBackend::kMemEfficient: {
      // One key/value head at a time. FP32 accumulators of dQ, dK and dV where the type is narrower; of O where D is wide.
      const bool narrow = element_bytes < 4;
      if (!backward) return group_elements * element_bytes + (narrow && problem.head_dim > 128 ? group_elements * 4 : 0);
      return 3 * group_elements * element_bytes + (narrow ? 3 * group_elements * 4 : 0) + softmax_bytes;
    }
    case AttentionBackend::kTiled: {
      const TiledShape shape = tiled_shape(problem);
      const int64_t tile_rows = shape.pairs * shape.tokens * group, score_bytes = tile_rows * shape.keys * 4;
      const int64_t parts = shape.keys / kTiledSummedKeys;
      const int64_t partial_bytes = parts < 2 ? 0 : (parts + 1) * shape.tokens * group * problem.head_dim * 4;
      const int64_t query_bytes = tile_rows * problem.head_dim * element_bytes, key_elements = shape.pairs * problem.tokens * problem.head_dim;
      if (!backward) return score_bytes + partial_bytes + 2 * query_bytes + 2 * key_elements * element_bytes;
      return 2 * score_bytes + partial_bytes + 4 * query_bytes + key_elements * (2 * element_bytes + 8);  // FP32 sums of dK and dV
    }
    case AttentionBackend::kCpuFlash: return backward ? query_elements * 4 : int64_t{8} << 20;
    case AttentionBackend::kCpuBlocked: {
      const int64_t keys = problem.tokens * problem.head_dim * 4;  // FP32 copies of one head's keys and values (and their gradients)
      return keys * (backward ? 4 : 2) + (int64_t{16} << 20) * (backward ? 3 : 2) + group_elements / std::max<int64_t>(problem.batch, 1) * 4 * (backward ? 4 : 1);
    }
  }
  return 0;
}

}  // namespace oom::ops
