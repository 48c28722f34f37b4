/// Which rows of a flattened batch are one stretch of a document: what sequential operators (recurrence, convolution) must not cross.
///
/// Rows are T = B * S tokens, sequence by sequence. A segment is a run of rows of one document; every sequence begins a segment. A segment that
/// begins a sequence may go on from before the call's rows (an initial state, a left context); every other one starts from nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "oom/error.h"

namespace oom::ops {

struct Segments {
  int64_t sequences = 1;  ///< B; T is a multiple of it
  /// int32 [N + 1], on the operands' device: first rows of the segments, then T. Never falls; the first row of every sequence is among them;
  /// equal neighbours are empty segments, which do nothing. Undefined: each sequence is one segment.
  at::Tensor starts;
  /// The same values for the calling thread, valid during the call; empty where `starts` is undefined.
  std::span<const int32_t> host_starts;

  /// N.
  int64_t count() const { return starts.defined() ? starts.numel() - 1 : sequences; }
};

/// Raises unless `segments` divide `tokens` rows on `like`'s device as said above (values are checked on the host's copy).
OOM_API void require_segments(const Segments& segments, int64_t tokens, const at::Tensor& like);

}  // namespace oom::ops
