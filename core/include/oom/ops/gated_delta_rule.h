/// The gated delta rule (Gated DeltaNet, arXiv 2412.06464) in chunk form, with its gradients written out.
///
/// Legend: T tokens, Hk key heads, Hv value heads (a multiple of Hk: value head h reads key head h / (Hv / Hk)), Dk and Dv head dimensions.
/// Per value head, with the state S [Dk, Dv], and per token with a = exp(log_decay):
///   S <- a S;   d = beta (v - S^T k);   S <- S + k d^T;   o = scale S^T q.
/// The decay comes before the read. Queries and keys are used as given: normalise them first (l2_norm.h).
///
/// Computed in tiles of kDeltaRuleTile tokens, counted from each segment's first row, so that nearly all work is matrix products: within a tile the
/// rule is a unit lower triangular system; between tiles the state is handed on. Accumulation, the inverse of the triangle and the state are FP32; on
/// CUDA operands of products are BF16 where the inputs are. FP32 inputs are computed in FP32 throughout. On CUDA BF16 inputs of 128 x 128 states
/// have tensor-core kernels (rows on 16 bytes); everything else there, FP32 above all, takes LibTorch's batched products, many times slower, and says so.
///
/// Runs on the current device and stream; on CUDA nothing waits for the device. Deterministic: fixed orders, no atomics on sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "oom/error.h"
#include "oom/ops/segments.h"

namespace oom::ops {

constexpr int64_t kDeltaRuleTile = 64;

/// q, k, v: FP32 or BF16, one type; head and dimension contiguous, tokens strided at will, so that parts of one projection need no copy.
struct DeltaRuleInputs {
  at::Tensor q;          ///< [T, Hk, Dk]
  at::Tensor k;          ///< [T, Hk, Dk]
  at::Tensor v;          ///< [T, Hv, Dv]
  at::Tensor log_decay;  ///< FP32 [T, Hv] contiguous, at most 0
  at::Tensor beta;       ///< FP32 [T, Hv] contiguous
  double scale = 1.0;    ///< on the output: Dk^-0.5
};

struct DeltaRuleForward {
  at::Tensor out;          ///< [T, Hv, Dv] contiguous, of q's type
  at::Tensor final_state;  ///< FP32 [B, Hv, Dk, Dv]: after each sequence's last token; undefined unless wanted
  /// What backward would otherwise compute again, in an order of the device's own; empty unless asked for.
  std::vector<at::Tensor> saved;
};

struct DeltaRuleWants {
  bool final_state = false;
  bool saved = false;
};

/// `initial_state` FP32 [B, Hv, Dk, Dv] contiguous: what the segment that begins each sequence starts from; undefined: zero.
OOM_API DeltaRuleForward gated_delta_rule_forward(const DeltaRuleInputs& inputs, const Segments& segments, const at::Tensor& initial_state,
                                                  const DeltaRuleWants& wants = {});

/// Results of backward, allocated by the caller and overwritten. dq, dk, dv like q, k, v (tokens strided at will); dq and dk are summed over the value
/// heads of their key head.
struct DeltaRuleGradients {
  at::Tensor dq, dk, dv;
  at::Tensor d_log_decay;      ///< FP32 [T, Hv] contiguous
  at::Tensor d_beta;           ///< FP32 [T, Hv] contiguous
  at::Tensor d_initial_state;  ///< FP32 [B, Hv, Dk, Dv]; undefined: not wanted
};

/// Gradients for `dout` [T, Hv, Dv] (contiguous, of q's type) and `d_final_state` FP32 [B, Hv, Dk, Dv] (undefined: zero). `initial_state` is the
/// forward's; `saved` is what a forward on this device and these inputs saved, or empty, and is released as it is used.
OOM_API void gated_delta_rule_backward(const DeltaRuleGradients& out, const at::Tensor& dout, const at::Tensor& d_final_state,
                                       const DeltaRuleInputs& inputs, const Segments& segments, const at::Tensor& initial_state,
                                       std::vector<at::Tensor> saved);

/// What decides scratch and saved bytes, without tensors.
struct DeltaRuleProblem {
  c10::DeviceType device = c10::DeviceType::CUDA;
  at::ScalarType dtype = at::kBFloat16;
  int64_t tokens = 0, segments = 1;
  int64_t key_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
};
/// The most that one call allocates beside operands, results and saved tensors, in bytes, for the accountant.
OOM_API int64_t gated_delta_rule_workspace_bytes(const DeltaRuleProblem& problem, bool backward);
/// Bytes of DeltaRuleForward::saved.
OOM_API int64_t gated_delta_rule_saved_bytes(const DeltaRuleProblem& problem);

}  // namespace oom::ops
