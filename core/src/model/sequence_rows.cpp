#include "model/sequence_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace oom::model {

SequenceRows::SequenceRows(const SequenceInfo& sequences, const Slice& slice) : batch_(sequences.batch), length_(sequences.length) {
  int64_t begin = 0;
  if (slice.axis == Axis::kSequence) {
    OOM_CHECK(slice.begin >= 0 && slice.begin < slice.end && slice.end <= sequences.length, "rows ", slice.begin, " to ", slice.end, " of sequences of ", sequences.length);
    begin = slice.begin;
    length_ = slice.end - slice.begin;
  }
  if (!sequences.document_starts.defined()) {
    if (begin == 0) {
      fresh_.resize(static_cast<size_t>(batch_));
      for (int64_t b = 0; b < batch_; ++b) fresh_[static_cast<size_t>(b)] = b;
    }
    return;
  }
  // A document outside the slice becomes an empty segment at its edge. No number is read back from the device.
  const int64_t whole = sequences.length;
  host_starts_.reserve(sequences.host_document_starts.size());
  for (const int64_t start : sequences.host_document_starts) {
    const int64_t sequence = start / whole, offset = start % whole;
    host_starts_.push_back(static_cast<int32_t>(sequence * length_ + std::clamp<int64_t>(offset - begin, 0, length_)));
    if (offset == begin && sequence < batch_ && (fresh_.empty() || fresh_.back() != sequence)) fresh_.push_back(sequence);
  }
  starts_ = length_ == whole ? sequences.document_starts
                             : at::div(sequences.document_starts, whole, "floor") * length_ + at::clamp(at::remainder(sequences.document_starts, whole) - begin, 0, length_);
}

at::Tensor SequenceRows::continued(const at::Tensor& handed_on) const {
  if (!handed_on.defined() || fresh_.empty()) return handed_on;
  if (static_cast<int64_t>(fresh_.size()) == batch_) return at::zeros_like(handed_on);
  const at::Tensor copy = handed_on.clone();
  for (const int64_t sequence : fresh_) copy.select(0, sequence).zero_();
  return copy;
}

}  // namespace oom::model
