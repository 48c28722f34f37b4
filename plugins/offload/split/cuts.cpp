#include "cuts.h"

#include <algorithm>

namespace oom::offload {

std::vector<SequenceRange> batches(const SequenceRange& range, int64_t most) {
  std::vector<SequenceRange> pieces;
  for (int64_t first = 0; first < range.count; first += most) pieces.push_back({range.first + first, std::min(most, range.count - first)});
  return pieces;
}

std::vector<SequenceRange> sub_batches(const StepEmitter& emitter, const Policy& policy) {
  const SequenceRange all{0, emitter.plan().sequences_per_rank()};
  const bool whole = emitter.feed_forward_tokens() == emitter.plan().tokens_per_rank();
  return batches(all, whole ? all.count : policy.sub_batch);
}

std::vector<Slice> head_groups(int64_t heads, int64_t heads_per_key, int64_t group) {
  if (group <= 0 || group >= heads) return {{Axis::kHeadGroup, 0, heads}};
  std::vector<Slice> groups;
  if (group >= heads_per_key) {
    const int64_t step = group / heads_per_key * heads_per_key;
    for (int64_t begin = 0; begin < heads; begin += step) groups.push_back({Axis::kHeadGroup, begin, std::min(begin + step, heads)});
    return groups;
  }
  for (int64_t key = 0; key < heads; key += heads_per_key) {
    for (int64_t begin = key; begin < key + heads_per_key; begin += group) groups.push_back({Axis::kHeadGroup, begin, std::min(begin + group, key + heads_per_key)});
  }
  return groups;
}

MixerPlan mixer_plan(const StepEmitter& emitter, const Policy& policy, int layer) {
  const Mixer& mixer = emitter.mixer(layer);
  const std::vector<CutAxis> axes = mixer.axes();
  const auto offers = [&](Axis wanted) { return std::any_of(axes.begin(), axes.end(), [&](const CutAxis& axis) { return axis.axis == wanted; }); };
  const int64_t length = emitter.plan().workload.sequence_length;
  const AttentionParts* attention = mixer.parts();
  MixerPlan plan{.sequences = policy.sub_batch};
  if (attention) plan.sequences = std::min(plan.sequences, policy.attention_batch / length);
  if (offers(Axis::kSequence)) {
    const int64_t chunk = attention ? policy.attention_chunk : policy.gdn_chunk;
    if (chunk < length) return {.cut = MixerCut::kSequence, .sequences = 1, .chunk = chunk};
    if (!attention) plan.sequences = std::min(plan.sequences, chunk / length);
  }
  if (!attention || !offers(Axis::kHeadGroup)) return plan;
  plan.head_groups = head_groups(mixer.keep_shape().heads, attention->heads_per_key(), policy.head_group);
  if (plan.head_groups.size() > 1) plan.cut = MixerCut::kHeads;
  return plan;
}

bool groups_heads(const StepEmitter& emitter, const Policy& policy, int layer) { return mixer_plan(emitter, policy, layer).cut == MixerCut::kHeads; }

std::vector<MixerPart> parts(const MixerPlan& plan, const SequenceRange& piece, int64_t length) {
  std::vector<MixerPart> list;
  const auto add = [&](const Slice& slice) { list.push_back({piece.first, piece.count, slice, static_cast<int>(list.size())}); };
  switch (plan.cut) {
    case MixerCut::kWhole: add({}); break;
    case MixerCut::kHeads:
      for (const Slice& group : plan.head_groups) add(group);
      break;
    case MixerCut::kSequence:
      for (int64_t begin = 0; begin < length; begin += plan.chunk) add({Axis::kSequence, begin, std::min(begin + plan.chunk, length)});
      break;
  }
  return list;
}

std::vector<TokenPart> feed_forward_parts(const StepEmitter& emitter, const std::vector<SequenceRange>& ranges, size_t index) {
  const int64_t length = emitter.plan().workload.sequence_length, most = emitter.feed_forward_tokens();
  std::vector<TokenPart> list;
  const int64_t begin = ranges[index].first * length, tokens = ranges[index].count * length;
  int before = 0;
  for (size_t earlier = 0; earlier < index; ++earlier) before += static_cast<int>((ranges[earlier].count * length + most - 1) / most);
  for (int64_t at = 0; at < tokens; at += most) list.push_back({begin + at, std::min(most, tokens - at), before + static_cast<int>(list.size()), false, false});
  list.front().first = index == 0;
  list.back().last = index + 1 == ranges.size();
  return list;
}

}  // namespace oom::offload
