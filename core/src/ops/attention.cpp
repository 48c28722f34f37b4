#include "oom/ops/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>

#include "oom/log.h"
#include "ops/attention_kernels.h"
#include "ops/current_device.h"

namespace oom::ops {
namespace {

void require_operands(const AttentionOperands& operands) {
  const auto& [q, k, v, options] = operands;
  OOM_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
            "attention takes q [B,S,Hq,D] and k, v [B,S,Hk,D]; got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  OOM_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "query heads are a multiple of key/value heads; got ", q.size(2), " and ", k.size(2));
  OOM_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() &&
                (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16),
            "attention takes FP32 or BF16, one type; got ", c10::toString(q.scalar_type()), ", ", c10::toString(k.scalar_type()), ", ",
            c10::toString(v.scalar_type()));
  OOM_CHECK(options.scale > 0, "attention needs a scale greater than 0; got ", options.scale);
  OOM_CHECK(options.window_tokens >= 0 && (options.causal || options.window_tokens == 0), "a sliding window needs causal attention; window ",
            options.window_tokens);
  const std::vector<int32_t>& starts = options.documents.starts;
  if (starts.empty()) return;
  OOM_CHECK(options.causal && operands.batch() == 1, "packed documents need causal attention and one sequence; got ", operands.batch());
  OOM_CHECK_EQ(int64_t{starts.back()}, operands.tokens(), "documents end where the sequence ends");
  OOM_CHECK(options.documents.starts_on_device.device() == q.device(), "documents packed for ", options.documents.starts_on_device.device().str(),
            ", attention on ", q.device().str());
}

AttentionBackend backend_for(const AttentionOperands& operands, bool backward) {
  const AttentionOptions& options = operands.options;
  if (options.backend) return *options.backend;
  const AttentionProblem problem{.device = operands.q.device().type(),
                                 .dtype = operands.q.scalar_type(),
                                 .compute_capability = compute_capability_of(operands.q),
                                 .batch = operands.batch(),
                                 .tokens = operands.tokens(),
                                 .query_heads = operands.query_heads(),
                                 .kv_heads = operands.kv_heads(),
                                 .head_dim = operands.head_dim(),
                                 .window_tokens = options.window_tokens,
                                 .causal = options.causal,
                                 .documents = !options.documents.starts.empty(),
                                 .deterministic = deterministic_attention()};
  const AttentionBackend backend = choose_attention_backend(problem, backward);
  static std::atomic<unsigned> told[2]{};
  const unsigned bit = 1u << static_cast<unsigned>(backend);
  if (!(told[backward].fetch_or(bit) & bit))
    log_info("attention: ", name_of(backend), backward ? " in the backward for " : " for ", c10::toString(problem.dtype), ", head dimension ", problem.head_dim, ", window ",
             problem.window_tokens, problem.documents ? ", packed documents" : "");
  return backend;
}

}  // namespace

PackedDocuments pack_documents(std::span<const int32_t> starts, c10::Device device) {
  OOM_CHECK(starts.size() >= 2 && starts.front() == 0, "document starts begin with 0 and end with the sequence's length");
  PackedDocuments documents{.starts = {starts.begin(), starts.end()}};
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    OOM_CHECK_LE(starts[i], starts[i + 1], "document starts never fall");
    documents.longest_tokens = std::max<int64_t>(documents.longest_tokens, starts[i + 1] - starts[i]);
  }
  documents.starts_on_device = at::tensor(documents.starts, at::TensorOptions().dtype(at::kInt)).to(device);
  return documents;
}

AttentionForward attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  const AttentionOperands operands{q, k, v, options};
  require_operands(operands);
  if (q.numel() == 0) return {at::empty(q.sizes(), q.options()), at::zeros({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  switch (backend_for(operands, /*backward=*/false)) {
    case AttentionBackend::kCpuFlash: return attention_forward_cpu_flash(operands);
    case AttentionBackend::kCpuBlocked: return attention_forward_blocked(operands);
    case AttentionBackend::kCudnn: return attention_forward_cudnn(operands);
    case AttentionBackend::kFlash2: return attention_forward_flash2(operands);
    case AttentionBackend::kMemEfficient: return attention_forward_mem_efficient(operands);
    case AttentionBackend::kTiled: return attention_forward_tiled(operands);
  }
  OOM_CHECK(false, "unknown attention backend");
  return {};
}

AttentionBackward attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                     const at::Tensor& lse, const AttentionOptions& options) {
  const AttentionOperands operands{q, k, v, options};
  require_operands(operands);
  OOM_CHECK(dout.sizes() == q.sizes() && out.sizes() == q.sizes(), "dout ", dout.sizes(), " and out ", out.sizes(), " for q ", q.sizes());
  OOM_CHECK(lse.dim() == 3 && lse.size(0) == q.size(0) && lse.size(1) == q.size(2) && lse.size(2) == q.size(1) && lse.scalar_type() == at::kFloat,
            "lse is FP32 [B,Hq,S]; got ", c10::toString(lse.scalar_type()), " ", lse.sizes(), " for q ", q.sizes());
  if (q.numel() == 0) return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const at::Tensor dout_c = dout.contiguous(), out_c = out.contiguous(), lse_c = lse.contiguous();
  const AttentionSaved saved{dout_c, out_c, lse_c};
  switch (backend_for(operands, /*backward=*/true)) {
    case AttentionBackend::kCpuFlash: return attention_backward_cpu_flash(operands, saved);
    case AttentionBackend::kCpuBlocked: return attention_backward_blocked(operands, saved);
    case AttentionBackend::kCudnn: return attention_backward_cudnn(operands, saved);
    case AttentionBackend::kFlash2: return attention_backward_flash2(operands, saved);
    case AttentionBackend::kMemEfficient: return attention_backward_mem_efficient(operands, saved);
    case AttentionBackend::kTiled: return attention_backward_tiled(operands, saved);
  }
  OOM_CHECK(false, "unknown attention backend");
  return {};
}

}  // namespace oom::ops
