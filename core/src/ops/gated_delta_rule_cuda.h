/// Arguments of the gated delta rule's CUDA kernels, and their launches. Symbols: oom/ops/gated_delta_rule.h.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct DeltaRuleShape {
  int64_t tokens = 0;     ///< T > 0
  int64_t sequences = 1;  ///< B; sequence b is rows b T / B to (b + 1) T / B
  int64_t segments = 1;   ///< N; some may be empty
  int64_t key_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  Element element = Element::kBFloat16;  ///< of q, k, v, out and their gradients
  float scale = 1;
  /// Tiles times value heads that are computed at one go, here 32 768 tokens of 32 heads: longer inputs take several passes in the same workspace.
  int64_t pass_slots = 16384;
};

/// Heads and dimensions are contiguous; a row of tokens begins every `stride` elements.
struct TokenRows {
  void* data = nullptr;
  int64_t stride = 0;
};

struct DeltaRuleOperands {
  DeltaRuleShape shape;
  TokenRows q, k, v;
  const float* log_decay = nullptr;         ///< [T, Hv]
  const float* beta = nullptr;              ///< [T, Hv]
  const int32_t* starts = nullptr;          ///< [N + 1] on the device; null: each sequence is one segment
  const int32_t* host_starts = nullptr;     ///< the same on the host
  const float* initial_state = nullptr;     ///< [B, Hv, Dk, Dv]; null: zero
};

struct DeltaRuleForwardLaunch {
  DeltaRuleOperands in;
  void* out = nullptr;           ///< [T, Hv, Dv]
  float* final_state = nullptr;  ///< [B, Hv, Dk, Dv]; null: not wanted
  void* saved = nullptr;         ///< delta_rule_saved_bytes_cuda; null: not wanted
  void* workspace = nullptr;     ///< delta_rule_workspace_bytes_cuda, 256-byte aligned
};

struct DeltaRuleBackwardLaunch {
  DeltaRuleOperands in;
  const void* dout = nullptr;            ///< [T, Hv, Dv]
  const float* d_final_state = nullptr;  ///< null: zero
  const void* saved = nullptr;           ///< the forward's; null: compute it again
  TokenRows dq, dk, dv;
  float* d_log_decay = nullptr;
  float* d_beta = nullptr;
  float* d_initial_state = nullptr;      ///< null: not wanted
  void* workspace = nullptr;
};

/// The kernels are of sm_80 and later, for BF16 and 128 x 128 states (delta_rule/). What they refuse runs in the tile form of LibTorch's operators.
/// Returns why they cannot serve this shape ("head dimension 16: ..."), or null when they can. Pure.
const char* delta_rule_refusal_cuda(const DeltaRuleShape& shape);
/// Bytes of `workspace` and `saved`. Pure. These three are in every build: one without CUDA plans for machines that have it.
int64_t delta_rule_workspace_bytes_cuda(const DeltaRuleShape& shape, bool backward);
int64_t delta_rule_saved_bytes_cuda(const DeltaRuleShape& shape);

void delta_rule_forward_cuda(const DeltaRuleForwardLaunch& launch, Stream stream);
void delta_rule_backward_cuda(const DeltaRuleBackwardLaunch& launch, Stream stream);

}  // namespace oom::ops
