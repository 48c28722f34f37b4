/// The memory between the kernels, cut out of one allocation. No CUDA is needed for it: builds without a device plan for machines that have one.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/delta_rule/kernels.h"

namespace oom::ops::delta_rule {

inline int64_t most_tiles(const DeltaRuleShape& shape) { return shape.tokens / kTokens + shape.segments; }
/// Tiles of a pass.
inline int64_t pass_tiles(const DeltaRuleShape& shape) { return std::min(most_tiles(shape), std::max<int64_t>(1, shape.pass_slots / shape.value_heads)); }

struct Workspace {
  SegmentSpan* segments = nullptr;
  TileSpan* tiles = nullptr;
  Slots slots;
  std::vector<float*> states;    ///< at passes' edges: one a pass for backward, two taken in turn for forward
  std::vector<float*> d_states;  ///< two taken in turn
  int64_t bytes = 0;             ///< of all of it
};

/// Cuts `from`, 256-byte aligned, into parts of the same alignment; null: counts only.
Workspace cut_workspace(void* from, const DeltaRuleShape& shape, bool backward);

}  // namespace oom::ops::delta_rule
