/// Split: how the work of a layer is cut.
#pragma once

#include <oom/step_emitter.h>

#include "../policy.h"

namespace oom::offload {

/// Whole sequences of a rank.
struct SequenceRange {
  int64_t first = 0;
  int64_t count = 0;
};

enum class MixerCut {
  kWhole,     ///< by sequences at most
  kHeads,     ///< and these by groups of query heads
  kSequence,  ///< each sequence into slices that hand a state on
};

/// How one layer's mixer is cut.
struct MixerPlan {
  MixerCut cut = MixerCut::kWhole;
  int64_t sequences = 0;             ///< in a part
  int64_t chunk = 0;                 ///< kSequence: tokens of a slice
  std::vector<Slice> head_groups;    ///< kHeads
};

/// What is handled together from a layer's input to its result. One range with all sequences where experts take no parts.
std::vector<SequenceRange> sub_batches(const StepEmitter& emitter, const Policy& policy);
MixerPlan mixer_plan(const StepEmitter& emitter, const Policy& policy, int layer);
/// True when the layer's attention goes by groups of heads, over whole sequences at a time: where its backward makes the peak, nothing should be on its way beside it.
bool groups_heads(const StepEmitter& emitter, const Policy& policy, int layer);
/// `range` in pieces of `most` sequences.
std::vector<SequenceRange> batches(const SequenceRange& range, int64_t most);
/// The parts of one piece of a mixer plan, in the order of the forward.
std::vector<MixerPart> parts(const MixerPlan& plan, const SequenceRange& piece, int64_t length);
/// The feed-forward's parts of sub-batch `index` of `ranges`.
std::vector<TokenPart> feed_forward_parts(const StepEmitter& emitter, const std::vector<SequenceRange>& ranges, size_t index);
/// Groups of at most `group` query heads, each within a key/value head or of several whole ones. 0: one group.
std::vector<Slice> head_groups(int64_t heads, int64_t heads_per_key, int64_t group);

}  // namespace oom::offload
