#include "runtime/program_emitter.h"

#include "plugin/plugin_guard.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace oom::runtime {

ProgramEmitter::ProgramEmitter(const Context& context)
    : context_(context),
      builder_(std::vector<int32_t>(context.plan.node_of_rank.begin(), context.plan.node_of_rank.end()), context.plan.numa_nodes, context.use),
      units_({builder_, context.memory, storage_, context.model, context.plan, context.run, context.transfer, context.pools}, context.purpose == Purpose::kTraining) {
  const ModelDescription& model = context_.model;
  const int layers = static_cast<int>(model.layers.size());
  std::vector<int> embedding, head, final_norm;
  std::vector<std::vector<int>> ordinary(layers);
  positions_.resize(layers);
  layer_parameters_.resize(layers);
  for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
    const ParameterSpec& spec = model.parameters[p];
    if (spec.layer >= 0) {
      const int64_t position = layer_parameters_.at(spec.layer)++;
      if (spec.role == ParameterRole::kExpert) continue;
      ordinary[spec.layer].push_back(p);
      positions_[spec.layer].push_back(static_cast<int>(position));
    } else if (spec.role == ParameterRole::kEmbedding) {
      embedding.push_back(p);
    } else if (spec.role == ParameterRole::kHead) {
      head.push_back(p);
    } else {
      final_norm.push_back(p);
    }
  }
  const int ranks = context_.plan.ranks;
  embedding_ = add_unit(make_shared_unit(model, "embedding", UnitKind::kVocabulary, kEmbeddingLayer, embedding, ranks));
  head_ = model.tied_embeddings ? embedding_ : add_unit(make_shared_unit(model, "head", UnitKind::kVocabulary, kHeadLayer, head, ranks));
  final_norm_ = add_unit(make_shared_unit(model, "final norm", UnitKind::kOrdinary, kHeadLayer, final_norm, ranks));
  for (int layer = 0; layer < layers; ++layer) {
    ordinary_.push_back(add_unit(make_shared_unit(model, cat("layer ", layer), UnitKind::kOrdinary, layer, ordinary[layer], ranks)));
  }
  plugin::guarded(context_.plan.experts, "add_units", plugin::kNoStep, [&] { context_.experts.add_units(*this); });
  add_ends();
}

ProgramEmitter::~ProgramEmitter() = default;

BufferId ProgramEmitter::add_named(const std::string& name, Place place, int64_t bytes, BufferClass buffer_class) {
  const BufferId buffer = builder_.add_buffer({.name = name, .place = place, .bytes = bytes, .buffer_class = buffer_class});
  storage_.place(storage_.add(name, place, bytes, buffer_class), buffer, 0);
  return buffer;
}

RankBuffers ProgramEmitter::add_activation(const std::string& name, int64_t bytes, BufferClass buffer_class) {
  RankBuffers buffers;
  for (int rank = 0; rank < ranks(); ++rank) {
    buffers.push_back(builder_.add_buffer(
        {.name = cat(name, " rank ", rank), .place = Place::gpu(rank), .bytes = bytes, .buffer_class = buffer_class, .lifetime = Lifetime::kTransient}));
  }
  return buffers;
}

int64_t ProgramEmitter::feed_forward_tokens() const {
  const int64_t all = plan().tokens_per_rank();
  if (!context_.activations || !context_.experts.takes_parts()) return all;
  return std::min(all, context_.activations->feed_forward_tokens(model(), plan()));
}

RankBuffers ProgramEmitter::add_device_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) {
  RankBuffers buffers;
  for (int rank = 0; rank < ranks(); ++rank) buffers.push_back(add_named(cat(name, " rank ", rank), Place::gpu(rank), bytes, buffer_class));
  return buffers;
}

RankBuffers ProgramEmitter::add_host_buffer(const std::string& name, int64_t bytes, BufferClass buffer_class) {
  RankBuffers buffers;
  for (int rank = 0; rank < ranks(); ++rank) {
    buffers.push_back(add_named(cat("host ", name, " rank ", rank), Place::numa(plan().node_of_rank.at(rank)), bytes, buffer_class));
  }
  return buffers;
}

std::vector<RankBuffers> ProgramEmitter::add_device_range(const std::string& name, int parts, int64_t bytes, BufferClass buffer_class) {
  std::vector<RankBuffers> buffers(parts);
  for (int rank = 0; rank < ranks(); ++rank) {
    const std::string range = cat(name, " rank ", rank);
    const int request = storage_.add(range, Place::gpu(rank), parts * bytes, buffer_class);
    for (int part = 0; part < parts; ++part) {
      buffers[part].push_back(builder_.add_buffer({.name = cat(range, " part ", part), .place = Place::gpu(rank), .bytes = bytes, .buffer_class = buffer_class}));
      storage_.place(request, buffers[part].back(), part * bytes);
    }
  }
  return buffers;
}

void ProgramEmitter::copy_bytes(void* to, const void* from, int64_t bytes, const StageContext& context) const {
  if (bytes > 0) context_.transfer.copy(to, from, bytes, bytes, context.stream);
}

LayerWeights ProgramEmitter::weights(const Delivery& delivery, int rank) const { return units_.weights(delivery, rank); }
LayerGradients ProgramEmitter::gradients(const GradientTarget& target, int rank, bool accumulate) const { return units_.gradients(target, rank, accumulate); }

LayerWeights ProgramEmitter::layer_weights(const Delivery& ordinary, int layer, int rank) const {
  const LayerWeights pieces = units_.weights(ordinary, rank);
  LayerWeights weights(layer_parameters_[layer]);
  for (size_t piece = 0; piece < pieces.size(); ++piece) weights[positions_[layer][piece]] = pieces[piece];
  return weights;
}

LayerGradients ProgramEmitter::layer_gradients(const GradientTarget& target, int layer, int rank) const {
  const LayerGradients pieces = units_.gradients(target, rank, target.accumulate);
  LayerGradients sinks(layer_parameters_[layer]);
  for (size_t piece = 0; piece < pieces.size(); ++piece) sinks[positions_[layer][piece]] = pieces[piece];
  return sinks;
}

at::Device ProgramEmitter::device_of(int rank) const { return context_.memory.view(position_buffers_[rank], at::kInt, {1}).device(); }

at::Tensor ProgramEmitter::activation(BufferId buffer) const {
  if (buffers_.at(buffer).lifetime == Lifetime::kTransient && !context_.memory.is_reserved(buffer)) return context_.memory.slot(buffer).tensor;
  return context_.memory.view(buffer, compute_type(), {plan().tokens_per_rank(), model().hidden});
}

void ProgramEmitter::put(BufferId buffer, at::Tensor value) const {
  if (buffers_.at(buffer).lifetime == Lifetime::kTransient) {
    context_.memory.slot(buffer).tensor = std::move(value);
  } else {
    activation(buffer).copy_(value);
  }
}

ProgramEmitter::RowSpan ProgramEmitter::span(const Activation& activation, int rank, int64_t begin, int64_t count) {
  OOM_CHECK(begin >= activation.begin && begin + count <= activation.begin + activation.rows, "tokens ", begin, " to ", begin + count, " of an activation of tokens ", activation.begin,
            " to ", activation.begin + activation.rows);
  return {activation.buffers[rank], activation.rows, begin - activation.begin, count};
}

at::Tensor ProgramEmitter::rows(const RowSpan& span) const {
  const at::Tensor whole = activation(span.buffer);
  return span.count == whole.size(0) ? whole : whole.narrow(0, span.offset, span.count);
}

void ProgramEmitter::put_rows(const RowSpan& span, at::Tensor value) const {
  const bool transient = buffers_.at(span.buffer).lifetime == Lifetime::kTransient;
  if (transient && span.count == span.total) {
    context_.memory.slot(span.buffer).tensor = std::move(value);
    return;
  }
  if (transient && !context_.memory.slot(span.buffer).tensor.defined()) {
    context_.memory.slot(span.buffer).tensor = at::empty({span.total, value.size(1)}, value.options());
  }
  rows(span).copy_(value);
}

void ProgramEmitter::declare_fill(StageSpec& spec, BufferId buffer, int64_t amount, int64_t total) {
  if (const auto read = std::find(spec.reads.begin(), spec.reads.end(), buffer); read != spec.reads.end()) {  // in place
    spec.reads.erase(read);
    spec.updates.push_back(buffer);
    return;
  }
  int64_t& filled = filled_[buffer];
  (filled == 0 ? spec.writes : spec.updates).push_back(buffer);
  filled += amount;
  if (filled >= total) filled = 0;
}

void ProgramEmitter::declare_result(StageSpec& spec, const RowSpan& span) {
  declare_fill(spec, span);
  const bool replaces = std::find(spec.updates.begin(), spec.updates.end(), span.buffer) != spec.updates.end();
  const bool copies = builder_.buffer(span.buffer).lifetime == Lifetime::kPersistent || span.count < span.total;
  if (replaces || copies) spec.cost.workspace_bytes += span.count * model().hidden * element_bytes(plan().workload.compute);
}

void ProgramEmitter::declare_sum(StageSpec& spec, BufferId buffer) { (summed_.insert(buffer).second ? spec.writes : spec.updates).push_back(buffer); }

void ProgramEmitter::emit_zero(int layer, GradientTarget& target) {
  target.accumulate = true;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (target.writes[rank].empty()) continue;
    const int64_t elements = unit(target.unit).elements;
    builder_.emit({.kind = "gradient_zero", .layer = layer, .lane = {Lane::kCompute, rank}, .writes = target.writes[rank], .cost = {.hbm_bytes = 4.0 * static_cast<double>(elements)},
                   .action = [this, target, rank, elements](StageContext& context) {
                     const int64_t bytes = elements * gradients(target, rank, true)[0].tensor.element_size();
                     context_.transfer.zero(context_.memory.data(target.writes[rank].front()), bytes, context.stream);
                   }});
  }
}

void ProgramEmitter::emit_copy(const std::string& kind, int layer, Lane lane, const RankBuffers& from, const RankBuffers& to, int64_t bytes, bool to_host) {
  const int64_t chunk = to_host ? plan().transfer.d2h_chunk_bytes : plan().transfer.h2d_chunk_bytes;
  for (int rank = 0; rank < ranks(); ++rank) {
    Cost cost{.bytes = static_cast<double>(bytes)};
    (to_host ? cost.d2h_bytes : cost.h2d_bytes) = static_cast<double>(bytes);
    cost.host_bytes[plan().node_of_rank.at(rank)] = static_cast<double>(bytes);
    builder_.emit({.kind = kind, .layer = layer, .lane = {lane, rank}, .reads = {from[rank]}, .writes = {to[rank]}, .waits_on_stream = true, .cost = cost,
                   .action = [this, source = from[rank], target = to[rank], bytes, chunk](StageContext& context) {
                     context_.transfer.copy(context_.memory.data(target), context_.memory.data(source), bytes, chunk, context.stream);
                   }});
  }
}

void ProgramEmitter::emit_store(const std::string& kind, int layer, const RankBuffers& device, const RankBuffers& host, int64_t bytes) {
  emit_copy(kind, layer, Lane::kD2h, device, host, bytes, /*to_host=*/true);
}
void ProgramEmitter::emit_load(const std::string& kind, int layer, const RankBuffers& host, const RankBuffers& device, int64_t bytes) {
  emit_copy(kind, layer, Lane::kH2d, host, device, bytes, /*to_host=*/false);
}

void ProgramEmitter::emit_reserve(int layer, const RankBuffers& slots) {
  for (int rank = 0; rank < ranks(); ++rank) {
    builder_.emit({.kind = "reserve", .layer = layer, .lane = {Lane::kCompute, rank}, .writes = {slots[rank]},
                   .action = [this, rank, slot = slots[rank], bytes = builder_.buffer(slots[rank]).bytes](StageContext&) {
                     context_.memory.reserve(slot, bytes, device_of(rank));
                   }});
  }
}

void ProgramEmitter::emit_release(int layer, const RankBuffers& slots) {
  for (int rank = 0; rank < ranks(); ++rank) builder_.emit({.kind = "release", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = {slots[rank]}});
}

BuiltProgram ProgramEmitter::finish() {
  BuiltProgram built = std::move(builder_).build();
  if (context_.use != ProgramUse::kRun) return built;
  const Program& program = built.program;
  buffers_ = program.buffers;
  std::vector<StageId> last(program.buffers.size(), kNone);
  for (StageId stage = 0; stage < static_cast<StageId>(program.stages.size()); ++stage) {
    for (const Access& access : program.stages[stage].accesses) last[access.buffer] = stage;
  }
  std::vector<std::vector<BufferId>> released(program.stages.size());
  for (size_t buffer = 0; buffer < program.buffers.size(); ++buffer) {
    if (program.buffers[buffer].lifetime == Lifetime::kTransient && last[buffer] != kNone) released[last[buffer]].push_back(static_cast<BufferId>(buffer));
  }
  for (size_t stage = 0; stage < released.size(); ++stage) {
    if (released[stage].empty()) continue;
    built.actions[stage] = [this, action = std::move(built.actions[stage]), buffers = std::move(released[stage])](StageContext& context) {
      if (action) action(context);
      for (const BufferId buffer : buffers) context_.memory.release(buffer);
    };
  }
  return built;
}

}  // namespace oom::runtime
