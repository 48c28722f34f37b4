#include "oom/ops/segments.h"

namespace oom::ops {

void require_segments(const Segments& segments, int64_t tokens, const at::Tensor& like) {
  OOM_CHECK(segments.sequences > 0 && tokens % segments.sequences == 0, tokens, " tokens are no ", segments.sequences, " sequences of one length");
  if (!segments.starts.defined()) return;
  const at::Tensor& starts = segments.starts;
  OOM_CHECK(starts.dim() == 1 && starts.is_contiguous() && starts.scalar_type() == at::kInt && starts.device() == like.device(),
            "segment starts must be contiguous int32 on ", like.device().str());
  const auto& host = segments.host_starts;
  OOM_CHECK_EQ(static_cast<int64_t>(host.size()), starts.numel(), "segment starts on the host and on the device");
  OOM_CHECK(!host.empty() && host.front() == 0 && host.back() == tokens, "segments must cover ", tokens, " tokens");
  const int64_t length = tokens / segments.sequences;
  int64_t next_sequence = 0;
  for (size_t i = 0; i < host.size(); ++i) {
    OOM_CHECK(i == 0 || host[i] >= host[i - 1], "segment starts must not fall: ", i > 0 ? host[i - 1] : 0, " before ", host[i]);
    OOM_CHECK(host[i] <= next_sequence, "a segment crosses into the sequence that begins at token ", next_sequence);
    if (host[i] == next_sequence) next_sequence += length;
  }
}

}  // namespace oom::ops
