#include "decoder.h"

#include <algorithm>

#include "../replay/transit.h"

namespace oom::offload {

struct Decoder::Backward {
  int layer;
  Delivery ordinary;
  GradientTarget target;
  MixerPlan plan;
  Activation x, gradient;       // gradient: of z, then of y, then of x, in place
  AttentionResults results;     // kept, or made by this replay; empty: the mixer has none
  bool kept = false;
  std::vector<std::vector<RankBuffers>> states;  // by sequence of the range, at the borders of its slices
};

Decoder::Decoder(StepEmitter& emitter, const Policy& policy, AttentionPool* pool, Transit* transit)
    : emitter_(emitter), policy_(policy), pool_(pool), transit_(transit), length_(emitter.plan().workload.sequence_length), ranges_(sub_batches(emitter, policy)) {}

bool Decoder::is_cut(const MixerPlan& plan) const {
  return plan.cut != MixerCut::kWhole || plan.sequences < ranges_.front().count;
}

RankBuffers Decoder::add_state(int layer, const std::string& what) {
  int64_t bytes = 0;
  for (const CutAxis& axis : emitter_.mixer(layer).axes()) {
    if (axis.axis == Axis::kSequence) bytes = axis.carried_bytes;
  }
  return emitter_.add_activation(cat(what, " layer ", layer), bytes);
}

void Decoder::emit_sequence_forward(int layer, Pass pass, const Delivery& ordinary, const std::vector<MixerPart>& parts, const Activation& x, const Activation& y, const AttentionResults& kept,
                                    std::vector<RankBuffers>* states) {
  RankBuffers before;
  for (const MixerPart& part : parts) {
    const RankBuffers after = part.slice.end < length_ ? add_state(layer, cat("state at ", part.slice.end)) : RankBuffers{};
    emitter_.emit_mixer_forward(layer, ordinary, part, pass, x, y, kept, before, after);
    if (states) states->push_back(before);
    before = after;
  }
}

void Decoder::emit_mixer_forward(int layer, Pass pass, const Delivery& ordinary, const MixerPlan& plan, const SequenceRange& range, const Activation& x, const Activation& y,
                                 const AttentionResults& kept) {
  for (const SequenceRange& piece : batches(range, plan.sequences)) {
    const std::vector<MixerPart> list = parts(plan, piece, length_);
    const MixerPart whole{piece.first, piece.count, {}, 0};
    if (pass != Pass::kForward && !kept.empty()) {
      // By the forward's products: of more or fewer rows, they would be rounded otherwise.
      for (const MixerPart& part : plan.cut == MixerCut::kSequence ? list : std::vector{whole}) emitter_.emit_project(layer, ordinary, part, x, kept, y);
    } else if (plan.cut == MixerCut::kHeads) {
      AttentionResults results = kept;
      if (results.empty()) results = {emitter_.add_activation(cat("attention results layer ", layer), emitter_.keep_bytes(layer, piece.count), BufferClass::kResult), piece.first, piece.count};
      for (const MixerPart& part : list) emitter_.emit_attend(layer, ordinary, part, pass, x, results);
      emitter_.emit_project(layer, ordinary, whole, x, results, y);
    } else if (plan.cut == MixerCut::kSequence) {
      emit_sequence_forward(layer, pass, ordinary, list, x, y, kept, nullptr);
    } else {
      for (const MixerPart& part : list) emitter_.emit_mixer_forward(layer, ordinary, part, pass, x, y, kept, {}, {});
    }
  }
}

Activation Decoder::retained_y(int layer, const Delivery& ordinary, Pass pass, const Activation& x) {
  Retained& held = retained_[layer];
  if (pass != Pass::kForward) return held.y;
  const SequenceRange& all = ranges_.front();
  OOM_CHECK(ranges_.size() == 1 && !is_cut(mixer_plan(emitter_, policy_, layer)), "layer ", layer, " retains attention that is cut");
  held.y = emitter_.add_rows(cat("retained y layer ", layer), 0, all.count * length_, BufferClass::kRetained);
  held.mixer = emitter_.emit_mixer_replay(layer, ordinary, {all.first, all.count, {}, 0}, pass, x, held.y, {});
  return held.y;
}

void Decoder::emit_forward(int layer, Pass pass, const Activation& x, const Activation& z) {
  const Delivery ordinary = emitter_.deliver(emitter_.ordinary_unit(layer));
  const MixerPlan plan = mixer_plan(emitter_, policy_, layer);
  const bool trains = pool_ != nullptr;
  const bool retains_mixer = trains && policy_.layers[layer].retain_attention, stores = trains && pass == Pass::kForward, passes = trains && pass != Pass::kForward;
  const bool saves = stores && policy_.layers[layer].retain_feed_forward;
  if (stores) transit_->begin_forward(layer);
  AttentionResults kept;
  if (trains) kept = stores ? pool_->fill(layer) : pool_->fetch(layer);
  if (passes) transit_->begin_pass();
  for (size_t index = 0; index < ranges_.size(); ++index) {
    const SequenceRange& range = ranges_[index];
    const std::vector<TokenPart> feed_forward = feed_forward_parts(emitter_, ranges_, index);
    // Where the feed-forward comes in parts, each replaces its rows of y by those of z.
    const bool in_place = feed_forward.size() > 1;
    const Activation y = retains_mixer ? retained_y(layer, ordinary, pass, x)
                         : in_place    ? z
                                       : emitter_.add_rows(cat("y layer ", layer), range.first * length_, range.count * length_);
    const bool mixer_fills = in_place && !retains_mixer, last = index + 1 == ranges_.size();
    if (stores && index == 0 && mixer_fills) transit_->before_result(layer);
    if (!retains_mixer) emit_mixer_forward(layer, pass, ordinary, plan, range, x, y, kept);
    if (stores && last) pool_->store(layer);
    if (passes && last) transit_->mixer_done();
    if (stores && index == 0 && !mixer_fills) transit_->before_result(layer);
    for (const TokenPart& part : feed_forward) {
      FeedForwardRecord record = emitter_.emit_feed_forward(layer, ordinary, part, pass, y, &z, saves);
      if (saves) retained_[layer].feed_forward.push_back(std::move(record));
    }
  }
}

void Decoder::emit_cut_replay(Backward& backward, const SequenceRange& range, const Activation& y) {
  const int layer = backward.layer;
  if (!backward.kept) {
    // O and LSE of this replay stay until the backward, so that attention runs once here too.
    const int64_t bytes = emitter_.keep_bytes(layer, range.count);
    backward.results = {};
    if (bytes > 0) backward.results = {emitter_.add_activation(cat("attention results of replay layer ", layer), bytes, BufferClass::kResult), range.first, range.count};
  }
  backward.states.clear();
  for (const SequenceRange& piece : batches(range, backward.plan.sequences)) {
    if (backward.plan.cut == MixerCut::kSequence) {
      backward.states.emplace_back();
      emit_sequence_forward(layer, backward.kept ? Pass::kReplayKept : Pass::kReplay, backward.ordinary, parts(backward.plan, piece, length_), backward.x, y, backward.results, &backward.states.back());
      continue;
    }
    if (backward.kept) {
      emitter_.emit_project(layer, backward.ordinary, {piece.first, piece.count, {}, 0}, backward.x, backward.results, y);
    } else if (backward.plan.cut == MixerCut::kHeads) {
      for (const MixerPart& part : parts(backward.plan, piece, length_)) emitter_.emit_attend(layer, backward.ordinary, part, Pass::kReplay, backward.x, backward.results);
      emitter_.emit_project(layer, backward.ordinary, {piece.first, piece.count, {}, 0}, backward.x, backward.results, y);
    } else {
      emitter_.emit_mixer_forward(layer, backward.ordinary, {piece.first, piece.count, {}, 0}, Pass::kReplay, backward.x, y, backward.results, {}, {});
    }
  }
}

void Decoder::emit_cut_backward(Backward& backward, const SequenceRange& range) {
  const int layer = backward.layer;
  const std::vector<SequenceRange> pieces = batches(range, backward.plan.sequences);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const MixerPart whole{pieces[p].first, pieces[p].count, {}, 0};
    std::vector<MixerPart> list = parts(backward.plan, pieces[p], length_);
    if (backward.plan.cut == MixerCut::kHeads) {
      const Activation projected = emitter_.emit_project_backward(layer, backward.ordinary, backward.target, whole, backward.x, backward.results, backward.gradient);
      const Activation normed = emitter_.add_sums(cat("gradient of normed input layer ", layer), whole.first_sequence * length_, whole.sequences * length_);
      // dK and dV in FP32 of a key/value head whose query heads are in several groups.
      const bool sums = backward.plan.head_groups.front().end < emitter_.mixer(layer).parts()->heads_per_key();
      const int64_t sum_bytes = sums ? whole.sequences * length_ * emitter_.mixer(layer).keep_shape().head_dim * 8 : 0;
      const RankBuffers key_sums = emitter_.add_activation(cat("sums of key gradients layer ", layer), sum_bytes);
      for (const MixerPart& part : list) emitter_.emit_attend_backward(layer, backward.ordinary, backward.target, part, backward.x, backward.results, projected, key_sums, normed);
      if (pieces[p].first + pieces[p].count == emitter_.plan().sequences_per_rank()) transit_->mixer_done();
      emitter_.emit_enter_backward(layer, backward.ordinary, backward.target, whole, backward.x, normed, backward.gradient, backward.gradient);
      continue;
    }
    const bool sequential = backward.plan.cut == MixerCut::kSequence;
    const RankBuffers carried = sequential ? add_state(layer, "gradient of state") : RankBuffers{};
    for (size_t part = list.size(); part-- > 0;) {
      const RankBuffers before = sequential ? backward.states[p][part] : RankBuffers{};
      emitter_.emit_mixer_rebuilt_backward(layer, backward.ordinary, backward.target, list[part], backward.x, backward.results, before, carried, backward.gradient, backward.gradient);
    }
  }
}

Activation Decoder::emit_backward(int layer, const Activation& x, const Activation& dz) {
  const UnitId unit = emitter_.ordinary_unit(layer);
  Backward backward{.layer = layer, .ordinary = emitter_.deliver(unit), .target = emitter_.gradient_target(unit), .plan = mixer_plan(emitter_, policy_, layer), .x = x, .gradient = dz};
  backward.results = pool_->fetch(layer);
  transit_->begin_pass();
  backward.kept = !backward.results.empty();
  const bool cut = is_cut(backward.plan);
  const Retained& held = retained_[layer];
  const bool replays_mixer = held.y.buffers.empty();
  size_t part_count = 0;
  const bool in_parts = cut || ranges_.size() > 1 || feed_forward_parts(emitter_, ranges_, 0).size() > 1;
  if (in_parts) emitter_.emit_zero(layer, backward.target);
  for (size_t index = 0; index < ranges_.size(); ++index) {
    const SequenceRange& range = ranges_[index];
    const MixerPart whole{range.first, range.count, {}, static_cast<int>(index)};
    const Activation y = replays_mixer ? emitter_.add_rows(cat("replayed y layer ", layer), range.first * length_, range.count * length_) : held.y;
    RankBuffers saved = held.mixer;
    if (cut) {
      emit_cut_replay(backward, range, y);
    } else if (replays_mixer) {
      saved = emitter_.emit_mixer_replay(layer, backward.ordinary, whole, Pass::kReplay, x, y, backward.results);
    }
    const Activation middle = in_parts ? dz : emitter_.all_tokens(emitter_.add_activation(cat("gradient of y layer ", layer), emitter_.boundary_bytes()));
    for (const TokenPart& part : feed_forward_parts(emitter_, ranges_, index)) {
      const FeedForwardRecord record = held.feed_forward.empty() ? emitter_.emit_feed_forward(layer, backward.ordinary, part, Pass::kReplay, y, nullptr, /*save=*/true)
                                                                 : held.feed_forward.at(part_count++);
      emitter_.emit_feed_forward_backward(layer, backward.ordinary, backward.target, part, record, y, dz, middle);
    }
    if (cut) {
      emit_cut_backward(backward, range);
    } else {
      if (!in_parts) backward.gradient = emitter_.all_tokens(emitter_.add_activation(cat("gradient of layer ", layer), emitter_.boundary_bytes()));
      emitter_.emit_mixer_backward(layer, backward.ordinary, backward.target, whole, x, saved, backward.results, middle, backward.gradient);
    }
  }
  emitter_.retire(unit);
  return backward.gradient;
}

}  // namespace oom::offload
