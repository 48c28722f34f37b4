/// A buffer of rows on their way: `rows` rows of H elements of the compute type, then as many 4-byte values, one a row: its expert (int32) or a weight (FP32).
#pragma once

#include <oom/step_emitter.h>

namespace oom::ep {

inline constexpr int64_t kValueBytes = 4;

struct ParcelLayout {
  int64_t rows = 0;
  int64_t hidden = 0;
  at::ScalarType type = at::kFloat;

  int64_t row_bytes() const { return hidden * (type == at::kFloat ? 4 : 2); }
  int64_t values_offset() const { return (rows * row_bytes() + 255) / 256 * 256; }
  int64_t bytes() const { return values_offset() + rows * kValueBytes; }
};

/// One such buffer on one rank, while actions run. Where several lanes fill it, `base` is the first of its parts.
struct Parcels {
  StepMemory& memory;
  BufferId base;
  ParcelLayout layout;

  at::Tensor rows(int64_t count) const { return memory.view(base, layout.type, {count, layout.hidden}); }
  at::Tensor experts(int64_t count) const { return memory.view(base, at::kInt, {count, 1}, layout.values_offset()); }
  at::Tensor weights(int64_t count) const { return memory.view(base, at::kFloat, {count, 1}, layout.values_offset()); }
  std::byte* row(int64_t first) const { return static_cast<std::byte*>(memory.data(base)) + first * layout.row_bytes(); }
  std::byte* value(int64_t first) const { return static_cast<std::byte*>(memory.data(base)) + layout.values_offset() + first * kValueBytes; }
};

}  // namespace oom::ep
