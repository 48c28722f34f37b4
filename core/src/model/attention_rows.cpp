#include "model/attention_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace oom::model {

AttentionRows::AttentionRows(const AttentionSettings& settings, const MixerCall& call)
    : settings_(settings), sequence_(call.sequence), batch_(call.sequence.batch), length_(call.sequence.length), sliced_(call.slice.axis == Axis::kSequence), positions_(call.sequence.positions) {
  Slice reached;
  if (sliced_) {
    const Slice& slice = call.slice;
    OOM_CHECK(settings.window_tokens > 0, "attention without a window is not cut along its sequences");
    OOM_CHECK(slice.begin >= 0 && slice.begin < slice.end && slice.end <= sequence_.length, "rows ", slice.begin, " to ", slice.end, " of sequences of ", sequence_.length);
    positions_ = positions_.view({batch_, length_}).narrow(1, slice.begin, slice.end - slice.begin).reshape({-1});
    length_ = slice.end - slice.begin;
    context_ = std::min(settings.window_tokens - 1, slice.begin);
    behind_ = std::min(settings.window_tokens - 1, slice.end);
    reached = {Axis::kSequence, slice.begin - context_, slice.end};
  }
  if (sequence_.document_starts.defined()) documents_.emplace(sequence_, reached);
}

ops::AttentionOptions AttentionRows::options() const {
  ops::AttentionOptions options{.scale = settings_.scale, .causal = true, .window_tokens = settings_.window_tokens};
  if (documents_) {
    const ops::Segments segments = documents_->segments();
    options.documents = {{segments.host_starts.begin(), segments.host_starts.end()}, segments.starts, std::min(sequence_.longest_document, context_ + length_)};
  }
  return options;
}

at::Tensor AttentionRows::attended(const at::Tensor& rows, int64_t heads, const at::Tensor& context) const {
  at::Tensor all = rows.view({batch_, length_, heads, settings_.head_dim});
  if (context_ > 0) {
    const at::Tensor before = context.defined() ? context : at::zeros({batch_, context_, heads, settings_.head_dim}, rows.options());
    OOM_CHECK_EQ(before.size(1), context_, "rows of context");
    all = at::cat({before, all}, 1);
  }
  return documents_ ? all.view({1, batch_ * (context_ + length_), heads, settings_.head_dim}) : all;
}

at::Tensor AttentionRows::by_sequence(const at::Tensor& attended) const { return attended.reshape({batch_, context_ + length_, attended.size(-2), attended.size(-1)}); }

at::Tensor AttentionRows::own(const at::Tensor& attended) const {
  return by_sequence(attended).narrow(1, context_, length_).reshape({batch_ * length_, attended.size(-2), attended.size(-1)});
}

at::Tensor AttentionRows::context_behind(const at::Tensor& attended) const { return by_sequence(attended).narrow(1, context_ + length_ - behind_, behind_).clone(); }

at::Tensor AttentionRows::own_gradient(const at::Tensor& attended, const at::Tensor& handed_back, at::Tensor& to_context) const {
  if (!sliced_) return own(attended.contiguous());
  const at::Tensor sum = by_sequence(attended.contiguous()).to(at::kFloat);
  if (handed_back.defined()) sum.narrow(1, context_ + length_ - handed_back.size(1), handed_back.size(1)).add_(handed_back);
  to_context = sum.narrow(1, 0, context_).clone();
  return own(sum).to(attended.scalar_type());
}

at::Tensor AttentionRows::attended_lse(const at::Tensor& kept) const {
  at::Tensor all = kept;
  if (context_ > 0) all = at::cat({at::zeros({batch_, kept.size(1), context_}, kept.options()), kept}, 2);
  return documents_ ? all.permute({1, 0, 2}).reshape({1, kept.size(1), batch_ * (context_ + length_)}) : all;
}

at::Tensor AttentionRows::own_lse(const at::Tensor& attended) const {
  const at::Tensor all = documents_ ? attended.view({attended.size(1), batch_, context_ + length_}).permute({1, 0, 2}) : attended;
  return all.narrow(2, context_, length_);
}

}  // namespace oom::model
