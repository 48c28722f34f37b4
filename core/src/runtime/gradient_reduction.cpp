#include "runtime/gradient_reduction.h"

#include <algorithm>
#include <cmath>

#include "runtime/shard_updates.h"

namespace oom::runtime {
namespace {

at::ScalarType scalar(ElementType type) { return type == ElementType::kFloat32 ? at::kFloat : at::kBFloat16; }

}  // namespace

GradientTarget GradientReduction::target(UnitId id) {
  UnitClass& shared = units_.class_of(id);
  units_.need_gradients(shared);
  const int buffer = shared.next_gradient;
  shared.next_gradient = (buffer + 1) % static_cast<int>(shared.gradient.size());
  in_use_[id] = buffer;
  GradientTarget target{id, std::vector<std::vector<BufferId>>(context_.plan.ranks)};
  for (const int rank : shared.readers) target.writes[rank] = shared.gradient[buffer][rank];
  return target;
}

LayerGradients GradientReduction::sinks(const GradientTarget& target, int rank, bool accumulate) const {
  const UnitRecord& record = units_.record(target.unit);
  const ElementType type = units_.class_of(target.unit).gradient_type;
  const BufferId base = target.writes.at(rank).front();
  LayerGradients sinks;
  for (const UnitPiece& piece : record.unit.pieces) sinks.push_back({context_.memory.view(base, scalar(type), piece.shape, piece.offset * element_bytes(type)), accumulate});
  return sinks;
}

void GradientReduction::reduce(UnitId id) {
  if (units_.record(id).host_reduced) {
    take_partials_out(id);
    return;
  }
  units_.need_reduction(units_.class_of(id));
  gather(id);
  sum(id);
}

void GradientReduction::gather(UnitId id) {
  const UnitRecord& record = units_.record(id);
  const UnitClass& shared = units_.class_of(id);
  for (const int rank : record.readers) {
    for (size_t s = 0; s < record.unit.shards.size(); ++s) {
      const BufferId to = shared.partial[s][rank];
      if (to == kNone) continue;
      const BufferId from = computed(id)[rank][s];
      const int64_t bytes = record.unit.shards[s].elements() * element_bytes(shared.gradient_type);
      context_.program.emit({.kind = "gradient_to_owner", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, rank}, .reads = {from}, .writes = {to},
                             .cost = {.peer_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes)},
                             .action = [&context = context_, from, to, bytes](StageContext& stage) {
                               context.transfer.copy(context.memory.data(to), context.memory.data(from), bytes, bytes, stage.stream);
                             }});
    }
  }
}

void GradientReduction::sum(UnitId id) {
  UnitRecord& record = units_.record(id);
  UnitClass& shared = units_.class_of(id);
  const ElementType partial_type = shared.gradient_type, out_type = context_.plan.workload.gradients;
  const bool stays_pending = record.resident && record.deferred;
  const bool in_place = partial_type == out_type && !stays_pending;
  if (stays_pending) {
    record.gradient = units_.need_pending(record);
  } else if (record.resident) {
    record.gradient.assign(record.unit.shards.size(), {});
    for (size_t s = 0; s < record.unit.shards.size(); ++s) record.gradient[s] = {in_place ? computed(id)[record.unit.shards[s].owner][s] : units_.need_reduced(shared)[s]};
  } else {
    record.gradient = units_.next_slot(id);
  }
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    const ShardRange& shard = record.unit.shards[s];
    const int64_t count = shard.elements();
    const BufferId own = computed(id)[shard.owner][s];
    const BufferId out = in_place ? own : stays_pending ? record.pending[s][0] : units_.need_reduced(shared)[s];
    const BufferId norm = record.resident ? record.device_norm[s] : shared.norm[s];
    std::vector<BufferId> partials;  // in rank order: the order of summation
    for (const int rank : record.readers) partials.push_back(rank == shard.owner ? own : shared.partial[s][rank]);
    std::vector<BufferId> reads = partials, writes{norm, shared.scratch[s]}, updates;
    if (in_place) {
      reads.erase(std::find(reads.begin(), reads.end(), own));
      updates.push_back(own);
    } else {
      writes.push_back(out);
    }
    const double moved = static_cast<double>(count) * (static_cast<double>(partials.size()) * static_cast<double>(element_bytes(partial_type)) + static_cast<double>(element_bytes(out_type)));
    context_.program.emit({.kind = "gradient_sum", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, shard.owner}, .reads = reads, .writes = writes,
                           .updates = updates, .cost = {.hbm_bytes = moved, .parameters = static_cast<double>(count)},
                           .action = [&context = context_, partials, out, norm, scratch = shared.scratch[s], count, partial_type, out_type](StageContext& stage) {
                             std::vector<const void*> from;
                             for (const BufferId partial : partials) from.push_back(context.memory.data(partial));
                             context.transfer.sum_partials(context.memory.data(out), out_type, from, partial_type, count, static_cast<double*>(context.memory.data(norm)),
                                                           context.memory.data(scratch), stage.stream);
                           }});
    if (record.resident) {
      stay(record, s);
    } else {
      take_out(record, s, out, norm);
    }
  }
}

void GradientReduction::take_out(const UnitRecord& record, size_t s, BufferId from, BufferId norm) {
  const ShardRange& shard = record.unit.shards[s];
  const int64_t bytes = shard.elements() * context_.gradient_bytes();
  const int64_t chunk = context_.plan.transfer.d2h_chunk_bytes;
  Cost cost{.d2h_bytes = static_cast<double>(bytes) + sizeof(double), .bytes = static_cast<double>(bytes), .parameters = static_cast<double>(shard.elements())};
  cost.host_bytes[context_.node_of(shard.owner)] = static_cast<double>(bytes);
  context_.program.emit({.kind = "gradient_out", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {record.way_out(), shard.owner}, .reads = {from, norm},
                         .writes = {record.gradient[s][0], record.norm[s]}, .waits_on_stream = true, .cost = cost,
                         .action = [&context = context_, from, norm, to = record.gradient[s][0], host_norm = record.norm[s], bytes, chunk](StageContext& stage) {
                           context.transfer.copy(context.memory.data(to), context.memory.data(from), bytes, chunk, stage.stream);
                           context.transfer.copy(context.memory.data(host_norm), context.memory.data(norm), sizeof(double), sizeof(double), stage.stream);
                         }});
}

// Only the sum of squares leaves. Where the update does not wait for the end of the step, the host looks at it at once: the device's update
// changes nothing where it is not finite, but no further shard shall be updated either.
void GradientReduction::stay(const UnitRecord& record, size_t s) {
  const ShardRange& shard = record.unit.shards[s];
  const BufferId norm = record.device_norm[s], host_norm = record.norm[s];
  context_.program.emit({.kind = "norm_out", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {record.way_out(), shard.owner}, .reads = {norm}, .writes = {host_norm},
                         .waits_on_stream = true, .cost = {.d2h_bytes = sizeof(double), .bytes = sizeof(double)}, .action = [&context = context_, norm, host_norm](StageContext& stage) {
                           context.transfer.copy(context.memory.data(host_norm), context.memory.data(norm), sizeof(double), sizeof(double), stage.stream);
                         }});
  if (record.deferred) return;
  context_.program.emit({.kind = "gradient_check", .layer = record.unit.layer, .part = static_cast<int>(s), .rank = shard.owner, .lane = {Lane::kUpdate, context_.node_of(shard.owner)},
                         .reads = {host_norm}, .action = [&context = context_, host_norm, name = record.unit.name, owner = shard.owner](StageContext& stage) {
                           check_finite(*static_cast<const double*>(context.memory.data(host_norm)), name, owner, stage.step);
                         }});
}

const ShardBuffers& GradientReduction::leaving(UnitId id, int rank) {
  const UnitRecord& record = units_.record(id);
  UnitClass& shared = units_.class_of(id);
  const ShardBuffers& from = computed(id)[rank];
  if (shared.gradient_type == context_.plan.workload.gradients) return from;
  const ShardBuffers& to = units_.need_rounded(shared, rank);
  const int64_t count = record.unit.elements;
  const ElementType in_type = shared.gradient_type, out_type = context_.plan.workload.gradients;
  context_.program.emit({.kind = "gradient_round", .layer = record.unit.layer, .lane = {Lane::kComm, rank}, .reads = from, .writes = to,
                         .cost = {.hbm_bytes = static_cast<double>(count * (element_bytes(in_type) + element_bytes(out_type))), .parameters = static_cast<double>(count)},
                         .action = [&context = context_, first = from.front(), out = to.front(), count, in_type, out_type](StageContext& stage) {
                           const void* partial = context.memory.data(first);
                           context.transfer.sum_partials(context.memory.data(out), out_type, {&partial, 1}, in_type, count, nullptr, nullptr, stage.stream);
                         }});
  return to;
}

void GradientReduction::take_partials_out(UnitId id) {
  UnitRecord& record = units_.record(id);
  record.gradient = units_.next_slot(id);
  const int64_t chunk = context_.plan.transfer.d2h_chunk_bytes;
  for (size_t r = 0; r < record.readers.size(); ++r) {
    const int rank = record.readers[r];
    const ShardBuffers& partial = leaving(id, rank);
    for (size_t s = 0; s < record.unit.shards.size(); ++s) {
      const ShardRange& shard = record.unit.shards[s];
      const int64_t bytes = shard.elements() * context_.gradient_bytes();
      Cost cost{.d2h_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes), .parameters = static_cast<double>(shard.elements())};
      cost.host_bytes[context_.node_of(shard.owner)] = static_cast<double>(bytes);
      context_.program.emit({.kind = "gradient_out", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {record.way_out(), rank}, .reads = {partial[s]},
                             .writes = {record.gradient[s][r]}, .waits_on_stream = true, .cost = cost,
                             .action = [&context = context_, from = partial[s], to = record.gradient[s][r], bytes, chunk](StageContext& stage) {
                               context.transfer.copy(context.memory.data(to), context.memory.data(from), bytes, chunk, stage.stream);
                             }});
    }
  }
  for (size_t s = 0; s < record.unit.shards.size(); ++s) measure(record, s);
}

// A pass of its own: that a gradient is finite must be known before the update changes anything.
void GradientReduction::measure(const UnitRecord& record, size_t s) {
  const ShardRange& shard = record.unit.shards[s];
  const int node = context_.node_of(shard.owner);
  const int64_t count = shard.elements();
  Cost cost{.parameters = static_cast<double>(count)};
  cost.host_bytes[node] = static_cast<double>(count * context_.gradient_bytes()) * static_cast<double>(record.readers.size());
  context_.program.emit({.kind = "gradient_norm", .layer = record.unit.layer, .part = static_cast<int>(s), .rank = shard.owner, .lane = {Lane::kUpdate, node}, .reads = record.gradient[s],
                         .writes = {record.norm[s]}, .cost = cost,
                         .action = [&context = context_, partials = record.gradient[s], norm = record.norm[s], node, count, type = as_optim(context_.plan.workload.gradients)](StageContext&) {
                           std::vector<const void*> from;
                           for (const BufferId partial : partials) from.push_back(context.memory.data(partial));
                           *static_cast<double*>(context.memory.data(norm)) = optim::gradient_stats_parallel(*context.pools.update.at(node), {type, from}, 1.0f, 0, count).sum_of_squares;
                         }});
}

}  // namespace oom::runtime
