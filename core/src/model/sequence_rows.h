/// What a call's rows are to sequential operators: which of them continue a document of the slice before.
#pragma once

#include <vector>

#include "oom/ops/segments.h"
#include "oom/sublayer.h"

namespace oom::model {

class SequenceRows {
 public:
  /// `slice` is kSequence (rows [begin, end) of each sequence) or anything else (all rows).
  SequenceRows(const SequenceInfo& sequences, const Slice& slice);

  int64_t batch() const { return batch_; }
  int64_t rows() const { return batch_ * length_; }
  /// Borrowed from this object.
  ops::Segments segments() const { return {batch_, starts_, host_starts_}; }
  /// Returns `handed_on` [B, ...] with zeros for the sequences whose first row begins a document: those heed nothing from before. An undefined tensor
  /// stays one. Used in both directions: what a state does not reach, its gradient does not leave.
  at::Tensor continued(const at::Tensor& handed_on) const;

 private:
  int64_t batch_ = 0;
  int64_t length_ = 0;             // rows of a sequence that the call sees
  at::Tensor starts_;
  std::vector<int32_t> host_starts_;
  std::vector<int64_t> fresh_;     // sequences that begin a document with the call's first row
};

}  // namespace oom::model
