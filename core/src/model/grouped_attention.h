/// Attention cut into groups of query heads.
#pragma once

#include "oom/blocks.h"
#include "oom/ops/attention.h"

namespace oom {
inline namespace abi_1 {

/// Where attention is made of matrix products, scores go through memory: so many times a kernel's time. Measured on H200 for D = 512 (one sequence of 256K tokens):
/// 2 and 1.4. Of the backward's the products are 0.6 and the rest is bytes a score, whatever D; smaller heads are estimated.
inline double attention_passes(const ops::AttentionProblem& problem, bool backward) {
  if (choose_attention_backend(problem, backward) != ops::AttentionBackend::kTiled) return 1;
  return backward ? 0.6 + 410.0 / static_cast<double>(problem.head_dim) : 2;
}

class GroupedAttention final : public AttentionParts {
 public:
  /// `row_chunk`: rows that work row by row takes at once, so that its temporaries stay small.
  explicit GroupedAttention(const AttentionSettings& settings, int64_t row_chunk = 65536);

  int64_t heads_per_key() const override { return settings_.query_heads / settings_.kv_heads; }
  void attend(const at::Tensor& x, const MixerCall& call, const Keep& results) const override;
  at::Tensor project(const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const override;
  bool transforms_projection() const override { return settings_.output_norm.present(); }
  at::Tensor project_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& output, const MixerCall& call) const override;
  void attend_backward(const at::Tensor& dprojected, const at::Tensor& x, const Keep& results, const MixerCall& call, CarriedState& key_sums, const at::Tensor& dnormed) const override;
  at::Tensor enter_backward(const at::Tensor& dnormed, const at::Tensor& dy, const at::Tensor& x, const MixerCall& call) const override;
  SublayerCost cost(Pass pass, int64_t batch, int64_t length, int64_t element_bytes, const Slice& slice) const;

 private:
  struct Heads;       // which query and key/value heads a slice has
  struct Projection;  // their queries, keys or values
  struct Projected;   // all three
  Projected project_heads(const at::Tensor& x, const Heads& heads, const MixerCall& call, bool for_backward) const;
  Projection make_projection(const at::Tensor& x, const at::Tensor& weight, int64_t heads, const NormSettings& norm, bool keeps_raw) const;
  /// Rows from `begin` of the projection's heads, out of what its product gave for them.
  void norm_heads(const Projection& projection, const at::Tensor& raw, int64_t begin, const MixerCall& call) const;
  at::Tensor normed_rows(const at::Tensor& x, const MixerCall& call) const;
  template <typename Body>
  void for_each_chunk(int64_t rows, const Body& body) const;
  int64_t query_rows() const;  // of Wq, a head
  /// The gates of all heads, [rows, heads * D], out of the normed input.
  at::Tensor gate_of(const at::Tensor& normed, const MixerCall& call) const;

  AttentionSettings settings_;
  ops::RotaryFrequencies frequencies_;
  int64_t row_chunk_;
};

}  // namespace abi_1
}  // namespace oom
