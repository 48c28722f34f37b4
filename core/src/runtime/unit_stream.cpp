#include "runtime/unit_stream.h"

#include <algorithm>

namespace oom::runtime {
namespace {

at::ScalarType scalar(ElementType type) { return type == ElementType::kFloat32 ? at::kFloat : at::kBFloat16; }

std::vector<int> readers_of(const ParameterUnit& unit, int ranks) {
  if (!unit.readers.empty()) return unit.readers;
  std::vector<int> all(ranks);
  for (int rank = 0; rank < ranks; ++rank) all[rank] = rank;
  return all;
}

bool contains(const std::vector<int>& values, int value) { return std::find(values.begin(), values.end(), value) != values.end(); }

bool same_shape(const std::vector<ShardRange>& left, const std::vector<ShardRange>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const ShardRange& a, const ShardRange& b) { return a.owner == b.owner && a.begin == b.begin && a.end == b.end; });
}

// Gaps between pieces hold zeros that are summed along; they must be the same gaps for all units that share buffers.
bool same_pieces(const std::vector<UnitPiece>& left, const std::vector<UnitPiece>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const UnitPiece& a, const UnitPiece& b) { return a.offset == b.offset && a.elements == b.elements; });
}

}  // namespace

UnitStream::UnitStream(ProgramBuilder& program, StepMemory& memory, StoragePlan& storage, const ModelDescription& model, const Plan& plan, RunState& run,
                       comm::DeviceTransfer& transfer, const UpdatePools& pools, bool every_unit_updates)
    : program_(program),
      memory_(memory),
      storage_(storage),
      model_(model),
      plan_(plan),
      run_(run),
      transfer_(transfer),
      pools_(pools),
      every_unit_updates_(every_unit_updates) {}

UnitStream::Class& UnitStream::class_of(UnitId id) { return classes_.at(units_.at(id).unit_class); }
const UnitStream::Class& UnitStream::class_of(UnitId id) const { return classes_.at(units_.at(id).unit_class); }

bool UnitStream::deferred(UnitId id) const {
  const ParameterUnit& unit = units_.at(id).unit;
  if (unit.layer == kHeadLayer) return plan_.deferred_layers >= static_cast<int>(model_.layers.size());
  if (unit.layer == kEmbeddingLayer) return plan_.deferred_layers > 0;
  return unit.layer < plan_.deferred_layers;
}

ElementType UnitStream::gradient_type(UnitId id) const { return class_of(id).gradient_type; }

UnitId UnitStream::add(ParameterUnit unit) {
  const UnitId id = count();
  const int64_t weight_bytes = element_bytes(plan_.workload.compute);
  Record record;
  // A class of its own for the vocabulary: its units are used once a step and need no second window.
  const auto fits = [&](const Class& shared) {
    const ParameterUnit& other = units_.at(shared.first_unit).unit;
    return other.kind == unit.kind && shared.elements == unit.elements && same_shape(shared.shards, unit.shards) && same_pieces(other.pieces, unit.pieces) &&
           other.readers == unit.readers && other.sums_slices == unit.sums_slices;
  };
  const auto found = std::find_if(classes_.begin(), classes_.end(), fits);
  record.unit_class = static_cast<int>(found - classes_.begin());
  for (size_t s = 0; s < unit.shards.size(); ++s) {
    const ShardRange& shard = unit.shards[s];
    const Place home = Place::numa(plan_.node_of_rank.at(shard.owner));
    const std::string name = cat(unit.name, " shard ", shard.owner);
    const auto add = [&](const std::string& what, int64_t bytes, BufferClass buffer_class) {
      const BufferId buffer = program_.add_buffer({.name = what + name, .place = home, .bytes = bytes, .buffer_class = buffer_class});
      storage_.place(storage_.add(what + name, home, bytes, buffer_class), buffer, 0);
      return buffer;
    };
    record.state.push_back(add("state ", optim::state_bytes(shard.elements()), BufferClass::kState));
    record.cached.push_back(add("weights ", shard.elements() * weight_bytes, BufferClass::kWorkingWeight));
    record.norm.push_back(add("norm ", 64, BufferClass::kResult));
  }
  const bool is_new = found == classes_.end();
  record.unit = std::move(unit);
  if (every_unit_updates_) add_shards(record);
  units_.push_back(std::move(record));
  if (is_new) {
    classes_.emplace_back();
    Class& shared = classes_.back();
    shared.first_unit = id;
    add_class_buffers(shared, units_.back().unit);
  }
  return id;
}

void UnitStream::add_shards(Record& record) {
  for (const ShardRange& shard : record.unit.shards) record.shards.push_back(program_.add_shard(cat(record.unit.name, " shard ", shard.owner), record.unit.layer, shard.owner));
}

void UnitStream::add_class_buffers(Class& shared, const ParameterUnit& unit) {
  shared.name = cat(unit.kind == UnitKind::kBank ? "bank" : unit.kind == UnitKind::kOrdinary ? "ordinary" : "vocabulary", " ", classes_.size() - 1);
  shared.elements = unit.elements;
  shared.shards = unit.shards;
  const bool fp32 = plan_.workload.compute == ElementType::kFloat32 || unit.kind != UnitKind::kBank || unit.sums_slices;
  shared.gradient_type = fp32 ? ElementType::kFloat32 : plan_.workload.gradients;
  const int64_t weight_bytes = element_bytes(plan_.workload.compute);
  const int64_t gradient_bytes = element_bytes(shared.gradient_type);
  const int64_t out_bytes = element_bytes(plan_.workload.gradients);
  const std::vector<int> readers = readers_of(unit, plan_.ranks);

  const auto add = [&](const std::string& name, Place place, int64_t bytes, BufferClass buffer_class) {
    const BufferId buffer = program_.add_buffer({.name = name, .place = place, .bytes = bytes, .buffer_class = buffer_class});
    storage_.place(storage_.add(name, place, bytes, buffer_class), buffer, 0);
    return buffer;
  };
  // One range of memory a rank, whose parts are the shards' buffers.
  const auto add_range = [&](const std::string& name, int rank, int64_t element_size, BufferClass buffer_class) {
    const int request = storage_.add(name, Place::gpu(rank), shared.elements * element_size, buffer_class);
    ShardBuffers buffers;
    for (const ShardRange& shard : shared.shards) {
      buffers.push_back(program_.add_buffer({.name = cat(name, " shard ", shard.owner),
                                             .place = Place::gpu(rank),
                                             .bytes = shard.elements() * element_size,
                                             .buffer_class = buffer_class}));
      storage_.place(request, buffers.back(), shard.begin * element_size);
    }
    return buffers;
  };

  const int windows = unit.kind == UnitKind::kVocabulary ? 1 : plan_.transfer.windows;
  for (int w = 0; w < windows; ++w) {
    shared.windows.emplace_back(plan_.ranks);
    for (const int rank : readers) shared.windows.back()[rank] = add_range(cat(shared.name, " window ", w, " rank ", rank), rank, weight_bytes, BufferClass::kWorkingWeight);
  }
  shared.held.assign(windows, -1);
  const int gradients = unit.kind == UnitKind::kVocabulary ? 1 : plan_.transfer.windows;
  for (int g = 0; g < gradients; ++g) {
    shared.gradients.emplace_back(plan_.ranks);
    for (const int rank : readers) shared.gradients.back()[rank] = add_range(cat(shared.name, " gradient ", g, " rank ", rank), rank, gradient_bytes, BufferClass::kGradient);
  }
  const bool in_place = shared.gradient_type == plan_.workload.gradients;
  for (const ShardRange& shard : shared.shards) {
    const std::string suffix = cat(" shard ", shard.owner);
    const Place gpu = Place::gpu(shard.owner);
    shared.staging.emplace_back(plan_.ranks, kNone);
    for (const int rank : readers) {
      if (rank == shard.owner) continue;
      shared.staging.back()[rank] = add(cat(shared.name, " partial of rank ", rank, suffix), gpu, shard.elements() * gradient_bytes, BufferClass::kStaging);
    }
    shared.reduced.push_back(in_place ? kNone : add(cat(shared.name, " reduced", suffix), gpu, shard.elements() * out_bytes, BufferClass::kGradient));
    shared.norm.push_back(add(cat(shared.name, " norm", suffix), gpu, 64, BufferClass::kResult));
    shared.scratch.push_back(add(cat(shared.name, " reduction scratch", suffix), gpu, comm::DeviceTransfer::reduction_scratch_bytes(shard.elements()), BufferClass::kWorkspace));
  }
  const int slots = unit.kind == UnitKind::kVocabulary ? 1 : plan_.transfer.gradient_slots;
  for (int k = 0; k < slots; ++k) {
    shared.slots.emplace_back();
    for (const ShardRange& shard : shared.shards) {
      shared.slots.back().push_back(add(cat(shared.name, " gradient slot ", k, " shard ", shard.owner), Place::numa(plan_.node_of_rank.at(shard.owner)),
                                        shard.elements() * out_bytes, BufferClass::kGradient));
    }
  }
}

void UnitStream::begin_step() {
  for (UnitId id = 0; id < count(); ++id) {
    units_[id].window = -1;
    if (!deferred(id)) continue;
    units_[id].pending = true;
    host_slot(id);
  }
  for (Class& shared : classes_) std::fill(shared.held.begin(), shared.held.end(), -1);
}

void UnitStream::finish_pending() {
  for (UnitId id = 0; id < count(); ++id) {
    if (units_[id].pending) emit_update(id);
  }
}

Delivery UnitStream::deliver(UnitId id) {
  Record& record = units_.at(id);
  Class& shared = class_of(id);
  if (record.pending) emit_update(id);
  const std::vector<int> readers = readers_of(record.unit, plan_.ranks);
  Delivery delivery{id, record.window, std::vector<std::vector<BufferId>>(plan_.ranks)};
  const bool resident_in_window = record.window >= 0 && shared.held[record.window] == id;
  if (!resident_in_window) {
    delivery.window = record.window = shared.next_window;
    shared.held[shared.next_window] = id;
    shared.next_window = (shared.next_window + 1) % static_cast<int>(shared.windows.size());
    const int64_t weight_bytes = element_bytes(plan_.workload.compute);
    const int64_t chunk = plan_.transfer.h2d_chunk_bytes;
    const bool bank = record.unit.kind == UnitKind::kBank;
    const bool shard_delivery = bank ? plan_.transfer.shard_delivery_bank : plan_.transfer.shard_delivery_ordinary;
    auto& window = shared.windows[delivery.window];
    for (size_t s = 0; s < shared.shards.size(); ++s) {
      const int owner = shared.shards[s].owner;
      const int node = plan_.node_of_rank.at(owner);
      const int64_t bytes = shared.shards[s].elements() * weight_bytes;
      const BufferId from = record.cached[s];
      const bool hand_on = shard_delivery && contains(readers, owner);
      for (const int rank : readers) {
        if (hand_on && rank != owner) continue;
        const BufferId to = window[rank][s];
        Cost cost{.h2d_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes), .parameters = static_cast<double>(shared.shards[s].elements())};
        cost.host_bytes[node] = static_cast<double>(bytes);
        program_.emit({.kind = "weights_in", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kH2d, rank}, .reads = {from}, .writes = {to}, .cost = cost,
                       .action = [this, from, to, bytes, chunk](StageContext& context) { transfer_.copy(memory_.data(to), memory_.data(from), bytes, chunk, context.stream); }});
      }
      if (!hand_on || readers.size() == 1) continue;
      const BufferId own = window[owner][s];
      std::vector<BufferId> peers;
      for (const int rank : readers) {
        if (rank != owner) peers.push_back(window[rank][s]);
      }
      program_.emit({.kind = "weights_to_peers", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, owner}, .reads = {own}, .writes = peers,
                     .cost = {.peer_bytes = static_cast<double>(bytes) * static_cast<double>(peers.size()), .bytes = static_cast<double>(bytes)},
                     .action = [this, own, peers, bytes](StageContext& context) {
                       for (const BufferId peer : peers) transfer_.copy(memory_.data(peer), memory_.data(own), bytes, bytes, context.stream);
                     }});
    }
  }
  for (const int rank : readers) delivery.reads[rank] = shared.windows[delivery.window][rank];
  return delivery;
}

GradientTarget UnitStream::gradient_target(UnitId id) {
  Class& shared = class_of(id);
  const int buffer = shared.next_gradient;
  shared.next_gradient = (buffer + 1) % static_cast<int>(shared.gradients.size());
  gradient_in_use_[id] = buffer;
  GradientTarget target{id, std::vector<std::vector<BufferId>>(plan_.ranks)};
  for (const int rank : readers_of(units_.at(id).unit, plan_.ranks)) target.writes[rank] = shared.gradients[buffer][rank];
  return target;
}

std::vector<BufferId>& UnitStream::host_slot(UnitId id) {
  Record& record = units_.at(id);
  Class& shared = class_of(id);
  if (!deferred(id)) {
    record.last_slot = shared.slots[shared.next_slot];
    shared.next_slot = (shared.next_slot + 1) % static_cast<int>(shared.slots.size());
    return record.last_slot;
  }
  if (record.pending_slot.empty()) {
    for (const ShardRange& shard : shared.shards) {
      const std::string name = cat(record.unit.name, " pending gradient shard ", shard.owner);
      const Place home = Place::numa(plan_.node_of_rank.at(shard.owner));
      const int64_t bytes = shard.elements() * element_bytes(plan_.workload.gradients);
      const BufferId buffer = program_.add_buffer({.name = name, .place = home, .bytes = bytes, .buffer_class = BufferClass::kGradient});
      storage_.place(storage_.add(name, home, bytes, BufferClass::kGradient), buffer, 0);
      record.pending_slot.push_back(buffer);
    }
  }
  record.last_slot = record.pending_slot;
  return record.pending_slot;
}

void UnitStream::retire(UnitId id) {
  Record& record = units_.at(id);
  Class& shared = class_of(id);
  const int buffer = gradient_in_use_.at(id);
  const std::vector<int> readers = readers_of(record.unit, plan_.ranks);
  const ElementType partial_type = shared.gradient_type;
  const ElementType out_type = plan_.workload.gradients;
  const int64_t partial_bytes = element_bytes(partial_type);
  const std::vector<BufferId>& slot = host_slot(id);
  const bool bank = record.unit.kind == UnitKind::kBank;

  for (const int rank : readers) {
    for (size_t s = 0; s < shared.shards.size(); ++s) {
      if (shared.staging[s][rank] == kNone) continue;
      const BufferId from = shared.gradients[buffer][rank][s];
      const BufferId to = shared.staging[s][rank];
      const int64_t bytes = shared.shards[s].elements() * partial_bytes;
      program_.emit({.kind = "gradient_to_owner", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, rank}, .reads = {from}, .writes = {to},
                     .cost = {.peer_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes)},
                     .action = [this, from, to, bytes](StageContext& context) { transfer_.copy(memory_.data(to), memory_.data(from), bytes, bytes, context.stream); }});
    }
  }
  for (size_t s = 0; s < shared.shards.size(); ++s) {
    const ShardRange& shard = shared.shards[s];
    const int node = plan_.node_of_rank.at(shard.owner);
    const int64_t count = shard.elements();
    std::vector<BufferId> partials;  // in rank order: the order of summation
    for (const int rank : readers) partials.push_back(rank == shard.owner ? shared.gradients[buffer][rank][s] : shared.staging[s][rank]);
    const bool in_place = shared.reduced[s] == kNone;
    const BufferId own = shared.gradients[buffer][shard.owner][s];
    const BufferId out = in_place ? own : shared.reduced[s];
    const BufferId norm = shared.norm[s];
    const BufferId scratch = shared.scratch[s];
    std::vector<BufferId> reads = partials;
    std::vector<BufferId> writes{norm, scratch};
    std::vector<BufferId> updates;
    if (in_place) {
      reads.erase(std::find(reads.begin(), reads.end(), own));
      updates.push_back(own);
    } else {
      writes.push_back(out);
    }
    const double moved = static_cast<double>(count) * static_cast<double>(partials.size() * partial_bytes + element_bytes(out_type));
    program_.emit({.kind = "gradient_sum", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, shard.owner}, .reads = reads, .writes = writes, .updates = updates,
                   .cost = {.hbm_bytes = moved, .parameters = static_cast<double>(count)},
                   .action = [this, partials, out, norm, scratch, count, partial_type, out_type](StageContext& context) {
                     std::vector<const void*> from;
                     for (const BufferId partial : partials) from.push_back(memory_.data(partial));
                     transfer_.sum_partials(memory_.data(out), out_type, from, partial_type, count, static_cast<double*>(memory_.data(norm)), memory_.data(scratch), context.stream);
                   }});
    const int64_t bytes = count * element_bytes(out_type);
    const int64_t chunk = plan_.transfer.d2h_chunk_bytes;
    Cost cost{.d2h_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes), .parameters = static_cast<double>(count)};
    cost.host_bytes[node] = static_cast<double>(bytes);
    const BufferId host_norm = record.norm[s];
    const BufferId to = slot[s];
    program_.emit({.kind = "gradient_out", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {bank ? Lane::kD2hExpert : Lane::kD2h, shard.owner}, .reads = {out, norm},
                   .writes = {to, host_norm}, .cost = cost,
                   .action = [this, out, to, norm, host_norm, bytes, chunk](StageContext& context) {
                     transfer_.copy(memory_.data(to), memory_.data(out), bytes, chunk, context.stream);
                     transfer_.copy(memory_.data(host_norm), memory_.data(norm), sizeof(double), sizeof(double), context.stream);
                   }});
  }
  if (!deferred(id)) emit_update(id);
}

void UnitStream::emit_update(UnitId id) {
  Record& record = units_.at(id);
  record.pending = false;
  record.window = -1;
  if (record.shards.empty()) add_shards(record);
  const std::vector<BufferId> slot = record.last_slot;
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    const ShardRange& shard = record.unit.shards[s];
    const int node = plan_.node_of_rank.at(shard.owner);
    const double count = static_cast<double>(shard.elements());
    Cost cost{.update_parameters = count, .parameters = count};
    cost.host_bytes[node] = count * static_cast<double>(24 + element_bytes(plan_.workload.gradients) + element_bytes(plan_.workload.compute));
    std::vector<BufferId> reads{slot[s], record.norm[s]};
    if (clip_ != kNone) reads.push_back(clip_);
    program_.emit({.kind = "update", .layer = record.unit.layer, .part = static_cast<int>(s), .rank = shard.owner, .lane = {Lane::kUpdate, node}, .reads = reads,
                   .writes = {record.cached[s]}, .updates = {record.state[s]}, .updates_shard = record.shards[s], .cost = cost, .action = update_action(id, s, slot)});
  }
}

Action UnitStream::update_action(UnitId id, size_t s, const std::vector<BufferId>& slot) const {
  const Record& record = units_.at(id);
  const ShardRange shard = record.unit.shards[s];
  const int node = plan_.node_of_rank.at(shard.owner);
  const BufferId gradient = slot[s], norm = record.norm[s], state = record.state[s], cached = record.cached[s], clip = clip_;
  const int delay = deferred(id) ? 1 : 0;
  const std::string name = record.unit.name;
  // Ranges of the shard that decay does not reach, and ranges that no update reaches.
  std::vector<optim::ElementRange> undecayed, trained;
  for (const UnitPiece& piece : record.unit.pieces) {
    const ParameterSpec& spec = model_.parameters.at(piece.parameter);
    const int64_t begin = std::max(piece.offset, shard.begin) - shard.begin;
    const int64_t end = std::min(piece.offset + piece.elements, shard.end) - shard.begin;
    if (begin >= end) continue;
    if (spec.trained) trained.push_back({begin, end});
    if (spec.shape.size() <= 1) undecayed.push_back({begin, end});
  }
  return [this, shard, node, gradient, norm, state, cached, clip, delay, name, undecayed, trained](StageContext& context) {
    const int64_t gradient_step = context.step - delay;
    if (gradient_step < run_.first_step) return;  // nothing is pending from before the first step
    const double sum_of_squares = *static_cast<const double*>(memory_.data(norm));
    if (!std::isfinite(sum_of_squares)) {
      throw DivergedError(cat("step ", gradient_step, ": the gradient of ", name, " (shard of rank ", shard.owner,
                              ") is not finite. The last checkpoint is good; lower train.learning_rate or set train.clip_norm"));
    }
    optim::AdamWStep hyper = run_.hyper(gradient_step);
    const void* partial = memory_.data(gradient);
    const auto as_optim = [](ElementType type) { return type == ElementType::kFloat32 ? optim::ElementType::kFP32 : optim::ElementType::kBF16; };
    optim::AdamWJob job{.state = optim::StateBlocks(static_cast<float*>(memory_.data(state)), shard.elements()),
                        .gradients = {as_optim(plan_.workload.gradients), std::span<const void* const>(&partial, 1)},
                        .gradient_scale = clip == kNone ? 1.0f : static_cast<float>(*static_cast<const double*>(memory_.data(clip))),
                        .step = hyper,
                        .without_decay = {},
                        .publish = {as_optim(plan_.workload.compute), memory_.data(cached)}};
    if (!run_.decay_norms) job.without_decay = undecayed;
    for (const optim::ElementRange& range : trained) optim::adamw_update_parallel(*pools_.at(node), job, range.begin, range.end);
  };
}

std::vector<BufferId> UnitStream::norms() const {
  std::vector<BufferId> all;
  for (const Record& record : units_) all.insert(all.end(), record.norm.begin(), record.norm.end());
  return all;
}

LayerWeights UnitStream::weights(const Delivery& delivery, int rank) const {
  const Record& record = units_.at(delivery.unit);
  const Class& shared = class_of(delivery.unit);
  const BufferId base = shared.windows[delivery.window][rank].front();
  const int64_t bytes = element_bytes(plan_.workload.compute);
  LayerWeights tensors;
  for (const UnitPiece& piece : record.unit.pieces) tensors.push_back(memory_.view(base, scalar(plan_.workload.compute), piece.shape, piece.offset * bytes));
  return tensors;
}

LayerGradients UnitStream::gradients(const GradientTarget& target, int rank, bool accumulate) const {
  const Record& record = units_.at(target.unit);
  const Class& shared = class_of(target.unit);
  const BufferId base = target.writes.at(rank).front();
  const int64_t bytes = element_bytes(shared.gradient_type);
  LayerGradients sinks;
  for (const UnitPiece& piece : record.unit.pieces) sinks.push_back({memory_.view(base, scalar(shared.gradient_type), piece.shape, piece.offset * bytes), accumulate});
  return sinks;
}

}  // namespace oom::runtime
