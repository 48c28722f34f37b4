/// Softmax attention with its gradients written out, over whole heads of whole sequences.
///
/// Legend: B sequences, S tokens each, Hq query heads, Hk key/value heads (Hq a multiple of Hk; query head h reads key/value head h / (Hq / Hk)),
/// D head dimension. q, out, dq are [B,S,Hq,D]; k, v, dk, dv are [B,S,Hk,D]; the last dimension is contiguous. FP32 or BF16, one type for all.
/// lse [B,Hq,S] FP32 contiguous on every backend: the natural log of the sum of exponentials of the scaled, masked scores. O and LSE of one
/// backend may feed another's backward.
///
/// Heads are independent, so a caller may pass any subset of the query heads of one key/value head (a head group) and sum dk, dv over groups.
/// Runs on the current device and stream; no host synchronisation on CUDA. cuDNN keeps its plans per thread: forward, replay and backward of
/// one shape belong on one thread, the rank's own. No dropout. Sources: FlashAttention (arXiv 2205.14135) for the backward from O and LSE.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "oom/error.h"

namespace oom::ops {

enum class AttentionBackend {
  kCpuFlash,      ///< LibTorch's CPU kernel: FP32, full causal.
  kCpuBlocked,    ///< Ours: FP32 arithmetic in blocks of query rows; windows, documents, BF16, any D.
  kCudnn,         ///< Fastest on sm_90: BF16, full causal, D <= 256.
  kFlash2,        ///< FlashAttention-2: BF16, D <= 256, windows and documents.
  kMemEfficient,  ///< FP32, D <= 256; keys and values expanded to the query heads, one key/value head at a time.
  kTiled,         ///< Ours: matrix products over blocks of query rows; D > 256, windows, documents, either type, either device.
};
OOM_API std::string_view name_of(AttentionBackend backend);

/// Documents that share one sequence without seeing each other. Borrowed by no one: copies are cheap.
struct PackedDocuments {
  /// Where documents begin, and the end: {0, 17, 40} are documents of 17 and 23 tokens. Empty: the sequence is one document.
  std::vector<int32_t> starts;
  /// The same as int32 on the device of q.
  at::Tensor starts_on_device;
  int64_t longest_tokens = 0;
};
/// Checks `starts` (begins at 0, never falls) and puts a copy on `device`. Once a batch, not once a layer: on CUDA the copy is pageable.
OOM_API PackedDocuments pack_documents(std::span<const int32_t> starts, c10::Device device);

struct AttentionOptions {
  /// Multiplies the scores; no default, because families differ (1/sqrt(D), or 1).
  double scale = 0;
  bool causal = true;
  /// A token sees itself and window_tokens - 1 earlier ones; 0: all earlier ones. Needs causal.
  int64_t window_tokens = 0;
  /// Needs B = 1 and causal.
  PackedDocuments documents;
  /// Forces a backend; tests and benchmarks.
  std::optional<AttentionBackend> backend;
};

struct AttentionForward {
  at::Tensor out;
  at::Tensor lse;
};
struct AttentionBackward {
  at::Tensor dq, dk, dv;
};

OOM_API AttentionForward attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);
/// Gradients for `dout` [B,S,Hq,D]. dk and dv are summed over the query heads of their key/value head.
OOM_API AttentionBackward attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& out, const at::Tensor& lse, const AttentionOptions& options);

/// What decides the backend and its scratch, without tensors.
struct AttentionProblem {
  c10::DeviceType device = c10::DeviceType::CUDA;
  at::ScalarType dtype = at::kBFloat16;
  int compute_capability = 90;
  int64_t batch = 1, tokens = 0, query_heads = 1, kv_heads = 1, head_dim = 128;
  int64_t window_tokens = 0;
  bool causal = true, documents = false;
  /// Of the backward on CUDA: repeats bit for bit. The libraries' kernels add to dq in the order in which their blocks happen to come; kTiled does not.
  /// FlashAttention-2's own deterministic form keeps an FP32 dq of one head for every multiprocessor: 18 GiB for 128K tokens and 16 heads of 256.
  bool deterministic = false;
};
/// A pure function of the problem and the direction.
OOM_API AttentionBackend choose_attention_backend(const AttentionProblem& problem, bool backward = false);
/// Whether backward passes of this process are `deterministic`; at first they are not. Set before anything is planned: prices and scratch follow.
OOM_API void set_deterministic_attention(bool deterministic);
OOM_API bool deterministic_attention();
/// Estimates the largest scratch of one call beside its operands and results, in bytes, for the accountant. Measured for cuDNN on H200
/// (8 bytes a query element in backward); from the kernels' own allocations for the others.
OOM_API int64_t attention_workspace_bytes(const AttentionProblem& problem, bool backward);

}  // namespace oom::ops
