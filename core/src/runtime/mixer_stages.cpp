// Mixers as stages of the compute lane: one a rank for each part.
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "runtime/program_emitter.h"
#include "runtime/sublayer_price.h"

namespace oom::runtime {
namespace {

// Rows that a stage of row-by-row work takes at once, so that its temporaries stay small.
constexpr int64_t kRowChunk = 65536;

int64_t heads_of(const MixerPart& part, const Mixer& mixer) {
  return part.slice.axis == Axis::kHeadGroup ? part.slice.end - part.slice.begin : mixer.keep_shape().heads;
}

template <typename Body>
void for_each_chunk(int64_t rows, const Body& body) {
  for (int64_t begin = 0; begin < rows; begin += kRowChunk) body(begin, std::min(kRowChunk, rows - begin));
}

}  // namespace

ProgramEmitter::Sequences ProgramEmitter::sequences(int rank, const MixerPart& part) const {
  Sequences some;
  SequenceInfo& info = some.info;
  info.batch = part.sequences;
  info.length = plan().workload.sequence_length;
  const int64_t begin = part.first_sequence * info.length, end = begin + info.batch * info.length;
  info.positions = context_.memory.view(position_buffers_[rank], at::kInt, {end - begin}, begin * 4);
  info.longest_document = info.length;
  if (document_buffers_.empty()) return some;
  const DocumentLimits& limits = context_.run.documents.at(rank);
  const std::span<const int32_t> all{static_cast<const int32_t*>(context_.memory.data(host_documents_[rank])), static_cast<size_t>(limits.count)};
  info.document_starts = context_.memory.view(document_buffers_[rank], at::kInt, {limits.count});
  info.host_document_starts = all;
  info.longest_document = limits.longest_tokens;
  if (info.batch == plan().sequences_per_rank()) return some;
  // Documents never cross sequences, so those of some sequences are a range of the limits.
  const auto first = std::lower_bound(all.begin(), all.end(), static_cast<int32_t>(begin)), last = std::lower_bound(first, all.end(), static_cast<int32_t>(end));
  for (auto limit = first; limit <= last; ++limit) some.starts.push_back(*limit - static_cast<int32_t>(begin));
  info.document_starts = at::sub(info.document_starts.narrow(0, first - all.begin(), static_cast<int64_t>(some.starts.size())), begin);
  info.host_document_starts = some.starts;
  info.longest_document = 0;
  for (size_t i = 0; i + 1 < some.starts.size(); ++i) info.longest_document = std::max<int64_t>(info.longest_document, some.starts[i + 1] - some.starts[i]);
  return some;
}

std::vector<BufferId> ProgramEmitter::sequence_buffers(int rank) const {
  std::vector<BufferId> buffers{position_buffers_[rank]};
  if (!document_buffers_.empty()) buffers.insert(buffers.end(), {document_buffers_[rank], host_documents_[rank]});
  return buffers;
}

int64_t ProgramEmitter::part_begin(const MixerPart& part) const {
  return part.first_sequence * plan().workload.sequence_length + (part.slice.axis == Axis::kSequence ? part.slice.begin : 0);
}
int64_t ProgramEmitter::part_tokens(const MixerPart& part) const {
  return part.slice.axis == Axis::kSequence ? part.slice.end - part.slice.begin : part.sequences * plan().workload.sequence_length;
}

Keep ProgramEmitter::results(const ResultSpan& span, int layer, const MixerPart& part) const {
  const KeepShape shape = mixer(layer).keep_shape();
  const Buffer& buffer = buffers_.at(span.buffer);
  const int64_t length = plan().workload.sequence_length, tokens = span.sequences * length, width = shape.heads * shape.head_dim;
  Keep whole;
  if (buffer.lifetime == Lifetime::kPersistent || context_.memory.is_reserved(span.buffer)) {
    whole.output = context_.memory.view(span.buffer, compute_type(), {tokens, width});
    whole.log_sum_exp = context_.memory.view(span.buffer, at::kFloat, {span.sequences, shape.heads, length}, tokens * width * element_bytes(plan().workload.compute));
  } else {
    Keep& slot = context_.memory.slot(span.buffer).keep;
    if (!slot.output.defined()) {
      const at::TensorOptions device(device_of(buffer.place.index));
      slot.output = at::empty({tokens, width}, device.dtype(compute_type()));
      slot.log_sum_exp = at::empty({span.sequences, shape.heads, length}, device.dtype(at::kFloat));
    }
    whole = slot;
  }
  Keep some{whole.output.narrow(0, part_begin(part) - span.first_sequence * length, part_tokens(part)),
            whole.log_sum_exp.narrow(0, part.first_sequence - span.first_sequence, part.sequences)};
  if (part.slice.axis == Axis::kSequence) some.log_sum_exp = some.log_sum_exp.narrow(2, part.slice.begin, part.slice.end - part.slice.begin);
  return some;
}

StageSpec ProgramEmitter::mixer_stage(const char* kind, int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, int rank) const {
  StageSpec spec{.kind = kind, .layer = layer, .part = part.index, .lane = {Lane::kCompute, rank}, .reads = ordinary.reads[rank], .cost = mixer_price(mixer(layer), pass, part, plan())};
  const std::vector<BufferId> described = sequence_buffers(rank);
  spec.reads.insert(spec.reads.end(), described.begin(), described.end());
  return spec;
}

void ProgramEmitter::emit_mixer_forward(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& kept,
                                        const RankBuffers& before, const RankBuffers& after) {
  const Mixer& mixer = this->mixer(layer);
  const bool reads_kept = pass == Pass::kReplayKept;
  for (int rank = 0; rank < ranks(); ++rank) {
    const char* kind = pass == Pass::kForward ? "mixer_forward" : reads_kept ? "mixer_replay_kept" : "mixer_replay";
    StageSpec spec = mixer_stage(kind, layer, ordinary, part, reads_kept ? Pass::kReplayKept : Pass::kForward, rank);
    const RowSpan in = span(x, rank, part_begin(part), part_tokens(part)), out = span(y, rank, part_begin(part), part_tokens(part));
    const ResultSpan keep = span(kept, rank);
    const BufferId entry = before.empty() ? kNone : before[rank], exit = after.empty() ? kNone : after[rank];
    spec.reads.push_back(in.buffer);
    if (entry != kNone) spec.reads.push_back(entry);
    declare_result(spec, out);
    if (reads_kept) {
      spec.reads.push_back(keep.buffer);
      spec.cost.workspace_bytes += mixer_cost(mixer, pass, part, plan()).saved_bytes;
    } else if (!kept.empty()) {
      declare_fill(spec, keep.buffer, part_tokens(part), keep.sequences * plan().workload.sequence_length);
    }
    if (exit != kNone) spec.writes.push_back(exit);
    spec.action = [this, &mixer, layer, ordinary, part, rank, reads_kept, in, out, keep, entry, exit](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const Sequences some = sequences(rank, part);
      CarriedState state = entry == kNone ? CarriedState{} : context_.memory.slot(entry).state;
      Keep filled;
      if (keep.buffer != kNone) filled = results(keep, layer, part);
      const bool carries = part.slice.axis == Axis::kSequence;
      const MixerCall call{.weights = weights, .sequence = some.info, .slice = part.slice, .state = carries ? &state : nullptr};
      Saved unused;
      put_rows(out, reads_kept ? mixer.replay(rows(in), call, &filled, unused) : mixer.forward(rows(in), call, keep.buffer == kNone ? nullptr : &filled));
      if (exit != kNone) context_.memory.slot(exit).state = std::move(state);
    };
    builder_.emit(std::move(spec));
  }
}

RankBuffers ProgramEmitter::emit_mixer_replay(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const Activation& y, const AttentionResults& kept) {
  const Mixer& mixer = this->mixer(layer);
  const bool forward = pass == Pass::kForward;
  const bool reuse = !kept.empty();
  const int64_t bytes = mixer_cost(mixer, Pass::kReplay, part, plan()).saved_bytes;
  const RankBuffers saved = add_activation(cat("mixer saved layer ", layer, " part ", part.index), bytes, forward ? BufferClass::kRetained : BufferClass::kWorkspace);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage(forward ? "mixer_forward" : reuse ? "mixer_replay_kept" : "mixer_replay", layer, ordinary, part, reuse ? Pass::kReplayKept : Pass::kReplay, rank);
    const RowSpan in = span(x, rank, part_begin(part), part_tokens(part)), out = span(y, rank, part_begin(part), part_tokens(part));
    const ResultSpan keep = span(kept, rank);
    spec.reads.push_back(in.buffer);
    if (reuse) spec.reads.push_back(keep.buffer);
    spec.writes.push_back(saved[rank]);
    declare_result(spec, out);
    spec.action = [this, &mixer, layer, ordinary, part, rank, in, out, keep, aside = saved[rank]](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const Sequences some = sequences(rank, part);
      Keep read;
      if (keep.buffer != kNone) read = results(keep, layer, part);
      put_rows(out, mixer.replay(rows(in), {.weights = weights, .sequence = some.info, .slice = part.slice}, keep.buffer == kNone ? nullptr : &read, context_.memory.slot(aside).saved));
    };
    builder_.emit(std::move(spec));
  }
  return saved;
}

void ProgramEmitter::emit_mixer_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const RankBuffers& saved,
                                         const AttentionResults& kept, const Activation& dy, const Activation& dx) {
  const Mixer& mixer = this->mixer(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    // The feed-forward's backward wrote its part of the ordinary gradients before: this one adds the rest.
    StageSpec spec = mixer_stage("mixer_backward", layer, ordinary, part, Pass::kBackward, rank);
    const int64_t begin = part_begin(part), count = part_tokens(part);
    const RowSpan in = span(x, rank, begin, count), upper = span(dy, rank, begin, count), lower = span(dx, rank, begin, count);
    spec.reads.insert(spec.reads.end(), {in.buffer, saved[rank], upper.buffer});
    if (!kept.empty()) spec.reads.push_back(kept.buffers[rank]);
    spec.updates = gradient.writes[rank];
    declare_result(spec, lower);
    spec.action = [this, &mixer, layer, ordinary, gradient, part, rank, in, aside = saved[rank], upper, lower](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const Sequences some = sequences(rank, part);
      put_rows(lower, mixer.backward(rows(upper), rows(in), context_.memory.slot(aside).saved, {.weights = weights, .gradients = &sinks, .sequence = some.info, .slice = part.slice}));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_mixer_rebuilt_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& kept,
                                                 const RankBuffers& before, const RankBuffers& state_gradient, const Activation& dy, const Activation& dx) {
  const Mixer& mixer = this->mixer(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage("mixer_rebuilt_backward", layer, ordinary, part, Pass::kBackward, rank);
    const SublayerCost replay = mixer_cost(mixer, kept.empty() ? Pass::kReplay : Pass::kReplayKept, part, plan());
    spec.cost.gemm_flops += replay.gemm_flops;
    spec.cost.attention_flops += replay.attention_flops;
    spec.cost.other_flops += replay.other_flops;
    spec.cost.hbm_bytes += replay.device_bytes;
    spec.cost.workspace_bytes = replay.saved_bytes + std::max(replay.workspace_bytes, spec.cost.workspace_bytes);
    const int64_t begin = part_begin(part), count = part_tokens(part);
    const RowSpan in = span(x, rank, begin, count), upper = span(dy, rank, begin, count), lower = span(dx, rank, begin, count);
    const ResultSpan keep = span(kept, rank);
    const BufferId entry = before.empty() ? kNone : before[rank], carried = state_gradient.empty() ? kNone : state_gradient[rank];
    spec.reads.insert(spec.reads.end(), {in.buffer, upper.buffer});
    if (keep.buffer != kNone) spec.reads.push_back(keep.buffer);
    if (entry != kNone) spec.reads.push_back(entry);
    spec.updates = gradient.writes[rank];
    if (carried != kNone) declare_sum(spec, carried);
    declare_result(spec, lower);
    const bool last = part.slice.axis != Axis::kSequence || part.slice.end == plan().workload.sequence_length;
    spec.action = [this, &mixer, layer, ordinary, gradient, part, rank, in, keep, entry, carried, upper, lower, last](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const Sequences some = sequences(rank, part);
      CarriedState state = entry == kNone ? CarriedState{} : context_.memory.slot(entry).state, none;
      CarriedState& gradient_of_state = carried == kNone ? none : context_.memory.slot(carried).state;
      if (last) gradient_of_state.tensors.clear();  // nothing comes back from behind a sequence's end
      const bool carries = part.slice.axis == Axis::kSequence;
      Keep read;
      if (keep.buffer != kNone) read = results(keep, layer, part);
      Saved saved;
      mixer.replay(rows(in), {.weights = weights, .sequence = some.info, .slice = part.slice, .state = carries ? &state : nullptr, .wants_output = false}, keep.buffer == kNone ? nullptr : &read, saved);
      put_rows(lower, mixer.backward(rows(upper), rows(in), saved,
                                     {.weights = weights, .gradients = &sinks, .sequence = some.info, .slice = part.slice, .state = carries ? &gradient_of_state : nullptr}));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_attend(int layer, const Delivery& ordinary, const MixerPart& part, Pass pass, const Activation& x, const AttentionResults& kept) {
  const Mixer& mixer = this->mixer(layer);
  const int64_t heads = heads_of(part, mixer), all = kept.sequences * mixer.keep_shape().heads;
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage(pass == Pass::kForward ? "attend" : "attend_replay", layer, ordinary, part, Pass::kAttend, rank);
    const RowSpan in = span(x, rank, part_begin(part), part_tokens(part));
    spec.reads.push_back(in.buffer);
    declare_fill(spec, kept.buffers[rank], heads * part.sequences, all);
    spec.action = [this, &mixer, layer, ordinary, part, rank, in, keep = span(kept, rank)](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const Sequences some = sequences(rank, part);
      mixer.parts()->attend(rows(in), {.weights = weights, .sequence = some.info, .slice = part.slice}, results(keep, layer, part));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_project(int layer, const Delivery& ordinary, const MixerPart& part, const Activation& x, const AttentionResults& kept, const Activation& y) {
  const Mixer& mixer = this->mixer(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage("project", layer, ordinary, part, Pass::kProject, rank);
    const RowSpan in = span(x, rank, part_begin(part), part_tokens(part)), out = span(y, rank, part_begin(part), part_tokens(part));
    spec.reads.insert(spec.reads.end(), {in.buffer, kept.buffers[rank]});
    declare_fill(spec, out);
    spec.action = [this, &mixer, layer, ordinary, part, rank, in, out, keep = span(kept, rank)](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      const Sequences some = sequences(rank, part);
      const at::Tensor attended = results(keep, layer, part).output;
      for_each_chunk(in.count, [&](int64_t begin, int64_t count) {
        const RowSpan from{in.buffer, in.total, in.offset + begin, count}, to{out.buffer, out.total, out.offset + begin, count};
        put_rows(to, mixer.parts()->project(rows(from), attended.narrow(0, begin, count), {.weights = weights, .sequence = some.info}));
      });
    };
    builder_.emit(std::move(spec));
  }
}

Activation ProgramEmitter::emit_project_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& kept,
                                                 const Activation& dy) {
  const Mixer& mixer = this->mixer(layer);
  if (!mixer.parts()->transforms_projection()) return dy;
  const Activation result = add_rows(cat("gradient of projection layer ", layer, " part ", part.index), part_begin(part), part_tokens(part));
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage("project_backward", layer, ordinary, part, Pass::kProject, rank);
    const int64_t begin = part_begin(part), count = part_tokens(part);
    const RowSpan in = span(x, rank, begin, count), upper = span(dy, rank, begin, count), out = span(result, rank, begin, count);
    spec.reads.insert(spec.reads.end(), {in.buffer, upper.buffer, kept.buffers[rank]});
    spec.updates = gradient.writes[rank];
    declare_fill(spec, out);
    spec.action = [this, &mixer, layer, ordinary, gradient, part, rank, in, upper, out, keep = span(kept, rank)](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const Sequences some = sequences(rank, part);
      const at::Tensor attended = results(keep, layer, part).output, above = rows(upper), inner = rows(in);
      for_each_chunk(in.count, [&](int64_t first, int64_t some_rows) {
        put_rows({out.buffer, out.total, out.offset + first, some_rows},
                 mixer.parts()->project_backward(above.narrow(0, first, some_rows), inner.narrow(0, first, some_rows), attended.narrow(0, first, some_rows),
                                                 {.weights = weights, .gradients = &sinks, .sequence = some.info}));
      });
    };
    builder_.emit(std::move(spec));
  }
  return result;
}

void ProgramEmitter::emit_attend_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const AttentionResults& kept,
                                          const Activation& dprojected, const RankBuffers& key_sums, const Activation& dnormed) {
  const Mixer& mixer = this->mixer(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage("attend_backward", layer, ordinary, part, Pass::kAttendBackward, rank);
    const int64_t begin = part_begin(part), count = part_tokens(part);
    const RowSpan in = span(x, rank, begin, count), upper = span(dprojected, rank, begin, count);
    spec.reads.insert(spec.reads.end(), {in.buffer, upper.buffer, kept.buffers[rank]});
    spec.updates = gradient.writes[rank];
    declare_sum(spec, key_sums[rank]);
    declare_sum(spec, dnormed.buffers[rank]);
    const int64_t offset = begin - dnormed.begin, total = dnormed.rows;
    spec.action = [this, &mixer, layer, ordinary, gradient, part, rank, in, upper, keep = span(kept, rank), sums = key_sums[rank], normed = dnormed.buffers[rank], offset, total](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const Sequences some = sequences(rank, part);
      at::Tensor& sum = context_.memory.slot(normed).tensor;
      const at::Tensor input = rows(in);
      if (!sum.defined()) sum = at::zeros({total, input.size(1)}, input.options().dtype(at::kFloat));
      mixer.parts()->attend_backward(rows(upper), input, results(keep, layer, part), {.weights = weights, .gradients = &sinks, .sequence = some.info, .slice = part.slice},
                                     context_.memory.slot(sums).state, sum.narrow(0, offset, input.size(0)));
    };
    builder_.emit(std::move(spec));
  }
}

void ProgramEmitter::emit_enter_backward(int layer, const Delivery& ordinary, const GradientTarget& gradient, const MixerPart& part, const Activation& x, const Activation& dnormed,
                                         const Activation& dy, const Activation& dx) {
  const Mixer& mixer = this->mixer(layer);
  for (int rank = 0; rank < ranks(); ++rank) {
    StageSpec spec = mixer_stage("enter_backward", layer, ordinary, part, Pass::kEnterBackward, rank);
    const int64_t begin = part_begin(part), count = part_tokens(part);
    const RowSpan in = span(x, rank, begin, count), upper = span(dy, rank, begin, count), lower = span(dx, rank, begin, count);
    spec.reads.insert(spec.reads.end(), {in.buffer, upper.buffer, dnormed.buffers[rank]});
    spec.updates = gradient.writes[rank];
    declare_fill(spec, lower);
    spec.action = [this, &mixer, layer, ordinary, gradient, part, rank, in, upper, lower, normed = dnormed.buffers[rank], offset = begin - dnormed.begin](StageContext&) {
      const LayerWeights weights = layer_weights(ordinary, layer, rank);
      LayerGradients sinks = layer_gradients(gradient, layer, rank);
      const Sequences some = sequences(rank, part);
      const at::Tensor sum = context_.memory.slot(normed).tensor.narrow(0, offset, in.count), input = rows(in), above = rows(upper);
      for_each_chunk(in.count, [&](int64_t first, int64_t count) {
        put_rows({lower.buffer, lower.total, lower.offset + first, count},
                 mixer.parts()->enter_backward(sum.narrow(0, first, count), above.narrow(0, first, count), input.narrow(0, first, count),
                                               {.weights = weights, .gradients = &sinks, .sequence = some.info}));
      });
    };
    builder_.emit(std::move(spec));
  }
}

}  // namespace oom::runtime
