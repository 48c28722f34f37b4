/// What a call's rows are to attention: whole sequences, or, along kSequence, rows [begin, end) of each with the context that their windows reach back to.
///
/// Legend: B sequences; L rows of each that the call is about; C = min(W - 1, begin) rows of context before them (0 where sequences are whole);
/// attention itself runs over [B, C + L, heads, D], or, where documents are isolated, over [1, B (C + L), heads, D].
#pragma once

#include <optional>

#include "model/sequence_rows.h"
#include "oom/blocks.h"
#include "oom/ops/attention.h"

namespace oom::model {

class AttentionRows {
 public:
  AttentionRows(const AttentionSettings& settings, const MixerCall& call);

  at::Tensor positions() const { return positions_; }  ///< int32 [B L]
  ops::AttentionOptions options() const;
  /// `rows` [B L, heads * D] (in any shape) behind `context` [B, C, heads, D]; undefined: zeros, for what is not about the context.
  at::Tensor attended(const at::Tensor& rows, int64_t heads, const at::Tensor& context = {}) const;
  /// The way back: [B L, heads, D].
  at::Tensor own(const at::Tensor& attended) const;
  /// The rows that the slice behind this one takes for its context, [B, min(W - 1, end), heads, D], in memory of their own.
  at::Tensor context_behind(const at::Tensor& attended) const;
  /// The gradient of keys or values of the call's rows, given what attention has of it and, in FP32, what the slice behind hands back. `to_context` receives
  /// in FP32 what is for the slices before. Where sequences are whole, that is `own`.
  at::Tensor own_gradient(const at::Tensor& attended, const at::Tensor& handed_back, at::Tensor& to_context) const;
  /// LSE as it is kept, [B, heads, L], in attention's form, and the way back.
  at::Tensor attended_lse(const at::Tensor& kept) const;
  at::Tensor own_lse(const at::Tensor& attended) const;

 private:
  at::Tensor by_sequence(const at::Tensor& attended) const;

  const AttentionSettings& settings_;
  const SequenceInfo& sequence_;
  int64_t batch_, length_, context_ = 0, behind_ = 0;
  bool sliced_;
  at::Tensor positions_;
  std::optional<SequenceRows> documents_;  // of context and rows
};

}  // namespace oom::model
