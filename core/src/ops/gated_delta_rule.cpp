#include "oom/ops/gated_delta_rule.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <atomic>

#include "oom/log.h"
#include "ops/gated_delta_rule_cuda.h"
#include "ops/gated_delta_rule_tiles.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

/// Raises unless heads and dimension of x [T, heads, dim] are contiguous and its type is the others'.
void require_heads(const at::Tensor& x, int64_t tokens, const at::Tensor& like, const char* name) {
  OOM_CHECK(x.dim() == 3 && x.size(0) == tokens && x.stride(2) == 1 && x.stride(1) == x.size(2), name, " must be [", tokens,
            ", heads, dim] with contiguous heads; sizes ", x.sizes(), " strides ", x.strides());
  OOM_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), name, " must be of type ", c10::toString(like.scalar_type()), " on ",
            like.device().str());
}

void require_state(const at::Tensor& state, const DeltaRuleInputs& in, const Segments& segments, const char* name) {
  if (!state.defined()) return;
  require_contiguous(state, at::kFloat, in.q, name);
  OOM_CHECK(state.sizes() == at::IntArrayRef({segments.sequences, in.v.size(1), in.k.size(2), in.v.size(2)}), name, " must be [",
            segments.sequences, ", ", in.v.size(1), ", ", in.k.size(2), ", ", in.v.size(2), "]; got ", state.sizes());
}

void require_operands(const DeltaRuleInputs& in, const Segments& segments) {
  const int64_t tokens = in.q.size(0);
  element_of(in.q);
  require_heads(in.q, tokens, in.q, "q");
  require_heads(in.k, tokens, in.q, "k");
  require_heads(in.v, tokens, in.q, "v");
  OOM_CHECK(in.k.sizes() == in.q.sizes() && in.k.size(1) > 0 && in.v.size(1) % in.k.size(1) == 0, "value heads are a multiple of the key heads: q ",
            in.q.sizes(), " k ", in.k.sizes(), " v ", in.v.sizes());
  for (const auto& [tensor, name] : {std::pair(&in.log_decay, "log_decay"), {&in.beta, "beta"}}) {
    require_contiguous(*tensor, at::kFloat, in.q, name);
    OOM_CHECK(tensor->dim() == 2 && tensor->size(0) == tokens && tensor->size(1) == in.v.size(1), name, " must be [", tokens, ", ", in.v.size(1),
              "]; got ", tensor->sizes());
  }
  require_segments(segments, tokens, in.q);
}

DeltaRuleShape shape_of(const DeltaRuleInputs& in, const Segments& segments) {
  return {.tokens = in.q.size(0), .sequences = segments.sequences, .segments = segments.count(), .key_heads = in.k.size(1), .value_heads = in.v.size(1),
          .key_dim = in.k.size(2), .value_dim = in.v.size(2), .element = element_of(in.q), .scale = static_cast<float>(in.scale)};
}

DeltaRuleShape shape_of(const DeltaRuleProblem& problem) {
  return {.tokens = problem.tokens, .segments = problem.segments, .key_heads = problem.key_heads, .value_heads = problem.value_heads,
          .key_dim = problem.key_dim, .value_dim = problem.value_dim,
          .element = problem.dtype == at::kFloat ? Element::kFloat32 : Element::kBFloat16};
}

/// Whether the CUDA kernels serve this call; says once why not.
bool use_kernels(const at::Tensor& like, const DeltaRuleShape& shape) {
  if (!on_cuda(like)) return false;
  const char* refusal = delta_rule_refusal_cuda(shape);
  static std::atomic<bool> said = false;
  if (refusal != nullptr && !said.exchange(true)) log_warn("gated_delta_rule: no CUDA kernel, many times slower: ", refusal);
  return refusal == nullptr;
}

TokenRows token_rows(const at::Tensor& x) { return {x.data_ptr(), x.stride(0)}; }
float* floats(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }
void* bytes_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }
at::Tensor byte_buffer(const at::Tensor& like, int64_t bytes) { return at::empty({std::max<int64_t>(bytes, 1)}, like.options().dtype(at::kByte)); }

DeltaRuleOperands operands_of(const DeltaRuleInputs& in, const Segments& segments, const at::Tensor& initial_state) {
  return {.shape = shape_of(in, segments), .q = token_rows(in.q), .k = token_rows(in.k), .v = token_rows(in.v), .log_decay = floats(in.log_decay),
          .beta = floats(in.beta), .starts = segments.starts.defined() ? segments.starts.data_ptr<int32_t>() : nullptr,
          .host_starts = segments.host_starts.empty() ? nullptr : segments.host_starts.data(), .initial_state = floats(initial_state)};
}

/// Calls body(first row, sequences, rows of each, sequence, begins it, ends it) for each batch of equally long segments: all sequences at once, or
/// segment by segment.
template <typename Body>
void for_each_batch(const Segments& segments, int64_t tokens, Body&& body) {
  const int64_t length = tokens / segments.sequences;
  if (!segments.starts.defined()) return body(0, segments.sequences, length, 0, true, true);
  for (size_t i = 0; i + 1 < segments.host_starts.size(); ++i) {
    const int64_t begin = segments.host_starts[i], end = segments.host_starts[i + 1];
    if (begin < end) body(begin, 1, end - begin, begin / length, begin % length == 0, end % length == 0);
  }
}

at::Tensor part(const at::Tensor& x, int64_t first, int64_t sequences, int64_t rows) {
  const at::Tensor rows_of_part = x.narrow(0, first, sequences * rows);
  return rows_of_part.unflatten(0, {sequences, rows});
}
TiledSequences part(const DeltaRuleInputs& in, int64_t first, int64_t sequences, int64_t rows) {
  return {part(in.q, first, sequences, rows), part(in.k, first, sequences, rows), part(in.v, first, sequences, rows),
          part(in.log_decay, first, sequences, rows), part(in.beta, first, sequences, rows), in.scale, {}};
}

}  // namespace

DeltaRuleForward gated_delta_rule_forward(const DeltaRuleInputs& in, const Segments& segments, const at::Tensor& initial_state,
                                          const DeltaRuleWants& wants) {
  require_operands(in, segments);
  require_state(initial_state, in, segments, "initial_state");
  const int64_t tokens = in.q.size(0);
  DeltaRuleForward result{.out = at::empty(in.v.sizes(), in.v.options())};
  if (wants.final_state) {
    result.final_state = at::empty({segments.sequences, in.v.size(1), in.k.size(2), in.v.size(2)}, in.log_decay.options());
    if (tokens == 0) initial_state.defined() ? result.final_state.copy_(initial_state) : result.final_state.zero_();
  }
  if (tokens == 0) return result;
  if (use_kernels(in.q, shape_of(in, segments))) {
    if constexpr (kWithCuda) {
      DeltaRuleForwardLaunch launch{.in = operands_of(in, segments, initial_state), .out = result.out.data_ptr(), .final_state = floats(result.final_state)};
      const at::Tensor saved = wants.saved ? byte_buffer(in.q, delta_rule_saved_bytes_cuda(launch.in.shape)) : at::Tensor();
      const at::Tensor workspace = byte_buffer(in.q, delta_rule_workspace_bytes_cuda(launch.in.shape, false));
      launch.saved = bytes_or_null(saved);
      launch.workspace = workspace.data_ptr();
      delta_rule_forward_cuda(launch, current_stream(in.q));
      if (saved.defined()) result.saved = {saved};
    }
    return result;
  }
  for_each_batch(segments, tokens, [&](int64_t first, int64_t sequences, int64_t rows, int64_t sequence, bool begins, bool ends) {
    TiledSequences tiled = part(in, first, sequences, rows);
    if (begins && initial_state.defined()) tiled.initial_state = initial_state.narrow(0, sequence, sequences);
    const at::Tensor state = delta_rule_forward_tiles(part(result.out, first, sequences, rows), tiled);
    if (ends && result.final_state.defined()) result.final_state.narrow(0, sequence, sequences).copy_(state);
  });
  return result;
}

void gated_delta_rule_backward(const DeltaRuleGradients& out, const at::Tensor& dout, const at::Tensor& d_final_state, const DeltaRuleInputs& in,
                               const Segments& segments, const at::Tensor& initial_state, std::vector<at::Tensor> saved) {
  require_operands(in, segments);
  require_state(initial_state, in, segments, "initial_state");
  require_state(d_final_state, in, segments, "d_final_state");
  require_state(out.d_initial_state, in, segments, "d_initial_state");
  const int64_t tokens = in.q.size(0);
  require_contiguous(dout, in.q.scalar_type(), in.q, "dout");
  OOM_CHECK(dout.sizes() == in.v.sizes(), "dout must be ", in.v.sizes(), "; got ", dout.sizes());
  for (const auto& [gradient, like, name] : {std::tuple(&out.dq, &in.q, "dq"), {&out.dk, &in.k, "dk"}, {&out.dv, &in.v, "dv"}}) {
    require_heads(*gradient, tokens, in.q, name);
    OOM_CHECK(gradient->sizes() == like->sizes(), name, " must be ", like->sizes(), "; got ", gradient->sizes());
  }
  for (const auto& [gradient, name] : {std::pair(&out.d_log_decay, "d_log_decay"), {&out.d_beta, "d_beta"}}) require_alike(*gradient, in.beta, name);
  if (tokens == 0) {
    if (out.d_initial_state.defined()) d_final_state.defined() ? out.d_initial_state.copy_(d_final_state) : out.d_initial_state.zero_();
    return;
  }
  if (use_kernels(in.q, shape_of(in, segments))) {
    if constexpr (kWithCuda) {
      DeltaRuleBackwardLaunch launch{.in = operands_of(in, segments, initial_state), .dout = dout.data_ptr(), .d_final_state = floats(d_final_state),
                                     .saved = saved.empty() ? nullptr : saved[0].data_ptr(), .dq = token_rows(out.dq), .dk = token_rows(out.dk),
                                     .dv = token_rows(out.dv), .d_log_decay = floats(out.d_log_decay), .d_beta = floats(out.d_beta),
                                     .d_initial_state = floats(out.d_initial_state)};
      const at::Tensor workspace = byte_buffer(in.q, delta_rule_workspace_bytes_cuda(launch.in.shape, true));
      launch.workspace = workspace.data_ptr();
      delta_rule_backward_cuda(launch, current_stream(in.q));
    }
    return;
  }
  for_each_batch(segments, tokens, [&](int64_t first, int64_t sequences, int64_t rows, int64_t sequence, bool begins, bool ends) {
    TiledSequences tiled = part(in, first, sequences, rows);
    if (begins && initial_state.defined()) tiled.initial_state = initial_state.narrow(0, sequence, sequences);
    const at::Tensor d_final = ends && d_final_state.defined() ? d_final_state.narrow(0, sequence, sequences) : at::Tensor();
    const TiledGradients gradients{part(out.dq, first, sequences, rows), part(out.dk, first, sequences, rows), part(out.dv, first, sequences, rows),
                                   part(out.d_log_decay, first, sequences, rows), part(out.d_beta, first, sequences, rows)};
    const at::Tensor d_initial = delta_rule_backward_tiles(gradients, part(dout, first, sequences, rows), d_final, tiled);
    if (begins && out.d_initial_state.defined()) out.d_initial_state.narrow(0, sequence, sequences).copy_(d_initial);
  });
}

int64_t gated_delta_rule_workspace_bytes(const DeltaRuleProblem& problem, bool backward) {
  const DeltaRuleShape shape = shape_of(problem);
  if (problem.device == c10::DeviceType::CUDA && delta_rule_refusal_cuda(shape) == nullptr) return delta_rule_workspace_bytes_cuda(shape, backward);
  return delta_rule_tiles_workspace_bytes(problem, backward);
}

int64_t gated_delta_rule_saved_bytes(const DeltaRuleProblem& problem) {
  const DeltaRuleShape shape = shape_of(problem);
  return problem.device == c10::DeviceType::CUDA && delta_rule_refusal_cuda(shape) == nullptr ? delta_rule_saved_bytes_cuda(shape) : 0;
}

}  // namespace oom::ops
