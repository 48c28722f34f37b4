#include "exchange.h"

#include <oom/ops/permutation.h>

namespace oom::ep {
namespace {

constexpr int64_t kPartAlignment = 256;

}  // namespace

std::vector<BufferId> Exchange::Ring::parts(int visit, int rank) const {
  std::vector<BufferId> buffers;
  for (const RankBuffers& part : at(visit)) buffers.push_back(part[rank]);
  return buffers;
}

Exchange::Exchange(StepEmitter& emitter, const ExchangeShape& shape) : emitter_(emitter), shape_(shape) {
  // Of a source's chunks one is combined, one computed and one on its way; of an owner's visits one is computed and one arrives.
  const int chunk_turns = std::min(3, shape_.chunks()), visit_turns = std::min(2, visits());
  sent_ = add_ring("experts rows sent", chunk_turns, shape_.chunk_rows());
  if (shape_.alone()) {
    received_ = sent_;  // the only rank computes where the rows were sorted
    for (int chunk = 0; chunk < shape_.chunks(); ++chunk) alone_counts_.push_back(shape_.chunk_size(chunk) * shape_.top_k);
    return;
  }
  received_ = add_ring("experts rows received", visit_turns, shape_.receive_rows);
  counts_ = emitter_.add_device_buffer("experts counts", shape_.chunks() * shape_.experts * 4, BufferClass::kResult);
}

Exchange::Ring Exchange::add_ring(const std::string& name, int turns, int64_t rows) {
  Ring ring{.turns = {}, .layout = {.rows = rows, .hidden = emitter_.model().hidden, .type = emitter_.compute_type()}};
  const int parts = shape_.ranks;
  const int64_t part_bytes = ((ring.layout.bytes() + parts - 1) / parts + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  for (int turn = 0; turn < turns; ++turn) ring.turns.push_back(emitter_.add_device_range(cat(name, " ", turn), parts, part_bytes, BufferClass::kStaging));
  return ring;
}

void Exchange::add_gradient_rings() {
  if (!sent_gradients_.turns.empty()) return;
  sent_gradients_ = add_ring("experts gradients sent", static_cast<int>(sent_.turns.size()), sent_.layout.rows);
  received_gradients_ = shape_.alone() ? sent_gradients_ : add_ring("experts gradients received", static_cast<int>(received_.turns.size()), received_.layout.rows);
}

std::vector<Exchange::Visit> Exchange::visits_in_order() const {
  std::vector<Visit> visits;
  int chunk_turn = 0;
  for (const ChunkRun& run : runs_of_chunks(shape_.chunks(), emitter_.program().use() != ProgramUse::kSketch)) {
    for (int round = 0; round < shape_.rounds(); ++round) {
      visits.push_back({.index = run.first * shape_.rounds() + round, .chunk = run.first, .round = round, .chunks = run.count, .turn = static_cast<int>(visits.size()), .chunk_turn = chunk_turn});
    }
    ++chunk_turn;
  }
  return visits;
}

RowCounts Exchange::row_counts(int layer, int rank, int chunk) const {
  if (shape_.alone()) return {&alone_counts_[chunk], 1};
  const int64_t pairs = static_cast<int64_t>(shape_.ranks) * shape_.ranks;
  return {static_cast<const int64_t*>(emitter_.memory().data(row_counts_.at(layer)[rank])) + chunk * pairs, static_cast<size_t>(pairs)};
}

ChunkOrder Exchange::chunk_order(BufferId order, int chunk) const {
  const std::vector<at::Tensor>& held = emitter_.memory().slot(order).saved.tensors;
  return {held[2 * chunk], held[2 * chunk + 1]};
}

int64_t Exchange::kept_bytes(int chunk, int round) const {
  const int64_t width = received_.layout.row_bytes() / received_.layout.hidden * (received_.layout.hidden + 2 * emitter_.model().routed.width);
  return shape_.kept_rows(chunk, round) * (width + 8);
}

std::vector<RankBuffers> Exchange::add_kept(int layer) {
  std::vector<RankBuffers> kept;
  for (int index = 0; index < visits(); ++index) {
    const int64_t bytes = kept_bytes(index / shape_.rounds(), index % shape_.rounds());
    kept.push_back(bytes > 0 ? emitter_.add_activation(cat("experts rows kept layer ", layer, " visit ", index), bytes, BufferClass::kRetained) : RankBuffers{});
  }
  return kept;
}

bool Exchange::all_kept(RowCounts counts, int chunk) const {
  for (int owner = 0; owner < shape_.ranks; ++owner) {
    for (int round = 0; round < shape_.rounds(); ++round) {
      if (!is_kept(shape_, counts, owner, chunk, round)) return false;
    }
  }
  return true;
}

ops::ExpertWeights Exchange::expert_weights(const Delivery& shard, int rank) const {
  const LayerWeights tensors = emitter_.weights(shard, rank);
  return {tensors[0], tensors[1], emitter_.model().routed.activation == "gelu_tanh" ? ops::GatedActivation::kGeluTanh : ops::GatedActivation::kSilu};
}

RankBuffers Exchange::emit_order(int layer, const RankBuffers& routing, bool counts, bool retain) {
  const int64_t choices = shape_.tokens * shape_.top_k;
  const RankBuffers order = emitter_.add_activation(cat("experts order", counts ? "" : " again", " layer ", layer), choices * 8, retain ? BufferClass::kRetained : BufferClass::kResult);
  counts = counts && !shape_.alone();
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    StageSpec spec{.kind = "experts_order", .layer = layer, .lane = {Lane::kCompute, rank}, .reads = {routing[rank]}, .writes = {order[rank]},
                   .cost = {.hbm_bytes = static_cast<double>(choices * 20), .tokens = static_cast<double>(shape_.tokens)}};
    if (counts) spec.writes.push_back(counts_[rank]);
    spec.action = [self = shared_from_this(), from = routing[rank], to = order[rank], counts = counts ? counts_[rank] : kNone](StageContext&) {
      StepMemory& memory = self->emitter_.memory();
      const ExchangeShape& shape = self->shape_;
      std::vector<at::Tensor>& held = memory.slot(to).saved.tensors;
      held.clear();
      for (int chunk = 0; chunk < shape.chunks(); ++chunk) {
        const ops::Permutation sorted = ops::make_permutation(self->tokens(chunk).of(memory.slot(from).routing.indices), shape.experts);
        held.push_back(sorted.token_of);
        held.push_back(sorted.row_of);
        if (counts != kNone) memory.view(counts, at::kInt, {shape.chunks(), shape.experts}).select(0, chunk).copy_(sorted.counts);
      }
    };
    emitter_.program().emit(std::move(spec));
  }
  return order;
}

void Exchange::emit_counts(int layer) {
  if (shape_.alone()) return;
  const int64_t bytes = shape_.chunks() * shape_.experts * 4;
  const int64_t pairs = static_cast<int64_t>(shape_.ranks) * shape_.ranks;
  const RankBuffers& host = host_counts_[layer] = emitter_.add_host_buffer(cat("experts counts layer ", layer), bytes, BufferClass::kResult);
  const RankBuffers& known = row_counts_[layer] = emitter_.add_host_buffer(cat("experts row counts layer ", layer), shape_.chunks() * pairs * 8, BufferClass::kResult);
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    // The expert lane: in the forward it has nothing else to carry, while boundaries leave through the other.
    emitter_.program().emit({.kind = "counts_out", .layer = layer, .lane = {Lane::kD2hExpert, rank}, .reads = {counts_[rank]}, .writes = {host[rank]},
                             .cost = {.d2h_bytes = static_cast<double>(bytes), .bytes = static_cast<double>(bytes)},
                             .action = [self = shared_from_this(), from = counts_[rank], to = host[rank], bytes](StageContext& context) {
                               self->emitter_.copy_bytes(self->emitter_.memory().data(to), self->emitter_.memory().data(from), bytes, context);
                             }});
  }
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    emitter_.program().emit({.kind = "counts_meet", .layer = layer, .lane = {Lane::kIssue, rank}, .reads = host, .writes = {known[rank]},
                             .action = [self = shared_from_this(), host, to = known[rank], layer, rank](StageContext&) {
                               const StepMemory& memory = self->emitter_.memory();
                               const ExchangeShape& shape = self->shape_;
                               const size_t ranks = static_cast<size_t>(shape.ranks), experts = static_cast<size_t>(shape.experts);
                               int64_t* out = static_cast<int64_t*>(memory.data(to));
                               for (int chunk = 0; chunk < shape.chunks(); ++chunk) {
                                 for (int source = 0; source < shape.ranks; ++source, out += ranks) {
                                   const int32_t* counts = static_cast<const int32_t*>(memory.data(host[source])) + chunk * shape.experts;
                                   count_rows({counts, experts}, {out, ranks});
                                   int64_t rows = 0;
                                   for (size_t owner = 0; owner < ranks; ++owner) rows += out[owner];
                                   OOM_CHECK_EQ(rows, shape.chunk_size(chunk) * shape.top_k, "layer ", layer, ", chunk ", chunk, ": rank ", rank, " reads wrong counts of rank ", source);
                                 }
                               }
                             }});
  }
}

}  // namespace oom::ep
