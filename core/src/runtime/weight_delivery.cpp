#include "runtime/weight_delivery.h"

#include <algorithm>

namespace oom::runtime {
namespace {

at::ScalarType scalar(ElementType type) { return type == ElementType::kFloat32 ? at::kFloat : at::kBFloat16; }

}  // namespace

void WeightDelivery::begin_step() {
  for (UnitId id = 0; id < units_.count(); ++id) {
    units_.record(id).window = -1;
    std::vector<UnitId>& held = units_.class_of(id).held;
    std::fill(held.begin(), held.end(), -1);
  }
}

Delivery WeightDelivery::deliver(UnitId id) {
  UnitRecord& record = units_.record(id);
  UnitClass& shared = units_.class_of(id);
  Delivery delivery{id, 0, std::vector<std::vector<BufferId>>(context_.plan.ranks)};
  if (record.read_in_place()) {
    delivery.reads[record.readers[0]] = record.kept;
    return delivery;
  }
  if (record.window < 0 || shared.held[record.window] != id) {
    take_window(id);
    const std::vector<ShardBuffers>& window = shared.window[record.window];
    const ShardBuffers& host = record.resident || record.kept[0] != kNone ? record.kept : prepare(id);
    for (size_t s = 0; s < record.unit.shards.size(); ++s) {
      if (record.resident) {
        bring_resident(record, s, window);
      } else {
        bring_streamed(record, s, host[s], window);
      }
    }
  }
  delivery.window = record.window;
  for (const int rank : record.readers) delivery.reads[rank] = shared.window[record.window][rank];
  return delivery;
}

void WeightDelivery::take_window(UnitId id) {
  UnitClass& shared = units_.class_of(id);
  units_.need_windows(shared);
  units_.empty_windows_beside(shared);
  units_.record(id).window = shared.next_window;
  shared.held[shared.next_window] = id;
  shared.next_window = (shared.next_window + 1) % shared.windows;
}

// On the h2d lane of the owner, which brings nothing else for this shard: prefetch and the order of windows are then those of streamed units.
void WeightDelivery::bring_resident(const UnitRecord& record, size_t s, const std::vector<ShardBuffers>& window) {
  const ShardRange& shard = record.unit.shards[s];
  const int64_t count = shard.elements(), bytes = count * context_.weight_bytes();
  const BufferId own = window[shard.owner][s], kept = record.kept[s], state = record.state[s];
  const bool copies = kept != kNone;
  StageSpec spec{.kind = copies ? "weights_copy" : "weights_make", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kH2d, shard.owner},
                 .reads = {copies ? kept : state}, .writes = {own},
                 .cost = {.hbm_bytes = static_cast<double>(bytes + (copies ? bytes : 4 * count)), .parameters = static_cast<double>(count)}};
  if (copies) {
    spec.action = [&context = context_, own, kept, bytes](StageContext& stage) { context.transfer.copy(context.memory.data(own), context.memory.data(kept), bytes, bytes, stage.stream); };
  } else {
    spec.action = [&context = context_, own, state, count, type = as_optim(context_.plan.workload.compute)](StageContext& stage) {
      context.transfer.make_weights(optim::StateBlocks(static_cast<float*>(context.memory.data(state)), count), {type, context.memory.data(own)}, stage.stream);
    };
  }
  context_.program.emit(std::move(spec));
  hand_on(record, s, copies ? kept : own, window);
}

const ShardBuffers& WeightDelivery::prepare(UnitId id) {
  const UnitRecord& record = units_.record(id);
  const ShardBuffers& prepared = units_.next_prepared(units_.class_of(id));
  for (size_t s = 0; s < record.unit.shards.size(); ++s) {
    const ShardRange& shard = record.unit.shards[s];
    const int node = context_.node_of(shard.owner);
    const int64_t count = shard.elements();
    Cost cost{.convert_parameters = static_cast<double>(count), .parameters = static_cast<double>(count)};
    cost.host_bytes[node] = static_cast<double>(count * (4 + context_.weight_bytes()));
    context_.program.emit({.kind = "weights_prepare", .layer = record.unit.layer, .part = static_cast<int>(s), .rank = shard.owner, .lane = {Lane::kPrepare, node},
                           .reads = {record.state[s]}, .writes = {prepared[s]}, .cost = cost,
                           .action = [&context = context_, node, count, state = record.state[s], to = prepared[s], type = as_optim(context_.plan.workload.compute)](StageContext&) {
                             const optim::StateBlocks blocks(static_cast<float*>(context.memory.data(state)), count);
                             optim::publish_weights_parallel(*context.pools.prepare.at(node), blocks, 0, count, {type, context.memory.data(to)});
                           }});
  }
  return prepared;
}

void WeightDelivery::bring_streamed(const UnitRecord& record, size_t s, BufferId from, const std::vector<ShardBuffers>& window) {
  const ShardRange& shard = record.unit.shards[s];
  const int64_t bytes = shard.elements() * context_.weight_bytes();
  const int64_t chunk = context_.plan.transfer.h2d_chunk_bytes;
  const bool shard_delivery = record.bank() ? context_.plan.transfer.shard_delivery_bank : context_.plan.transfer.shard_delivery_ordinary;
  const bool handed_on = shard_delivery && std::find(record.readers.begin(), record.readers.end(), shard.owner) != record.readers.end();
  for (const int rank : record.readers) {
    if (handed_on && rank != shard.owner) continue;
    Cost cost{.h2d_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes), .parameters = static_cast<double>(shard.elements())};
    cost.host_bytes[context_.node_of(shard.owner)] = static_cast<double>(bytes);
    context_.program.emit({.kind = "weights_in", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kH2d, rank}, .reads = {from}, .writes = {window[rank][s]}, .waits_on_stream = true,
                           .cost = cost, .action = [&context = context_, from, to = window[rank][s], bytes, chunk](StageContext& stage) {
                             context.transfer.copy(context.memory.data(to), context.memory.data(from), bytes, chunk, stage.stream);
                           }});
  }
  if (handed_on) hand_on(record, s, window[shard.owner][s], window);
}

void WeightDelivery::hand_on(const UnitRecord& record, size_t s, BufferId from, const std::vector<ShardBuffers>& window) {
  const ShardRange& shard = record.unit.shards[s];
  std::vector<BufferId> peers;
  for (const int rank : record.readers) {
    if (rank != shard.owner) peers.push_back(window[rank][s]);
  }
  if (peers.empty()) return;
  const int64_t bytes = shard.elements() * context_.weight_bytes();
  context_.program.emit({.kind = "weights_to_peers", .layer = record.unit.layer, .part = static_cast<int>(s), .lane = {Lane::kComm, shard.owner}, .reads = {from}, .writes = peers,
                         .cost = {.peer_bytes = static_cast<double>(bytes) * static_cast<double>(peers.size()), .bytes = static_cast<double>(bytes)},
                         .action = [&context = context_, from, peers, bytes](StageContext& stage) {
                           for (const BufferId peer : peers) context.transfer.copy(context.memory.data(peer), context.memory.data(from), bytes, bytes, stage.stream);
                         }});
}

LayerWeights WeightDelivery::weights(const Delivery& delivery, int rank) const {
  const UnitRecord& record = units_.record(delivery.unit);
  const BufferId base = delivery.reads.at(rank).front();
  LayerWeights tensors;
  for (const UnitPiece& piece : record.unit.pieces) {
    tensors.push_back(context_.memory.view(base, scalar(context_.plan.workload.compute), piece.shape, piece.offset * context_.weight_bytes()));
  }
  return tensors;
}

}  // namespace oom::runtime
