/// The token exchange of one program: its buffers, and the stages that send rows to the owners of their experts and bring results back.
///
/// A layer's forward, for each rank:
///   compute  experts_order     sorts the choices of every chunk, counts them by expert
///   d2h      counts_out        the counts go to host memory
///   issue    counts_meet       all ranks' counts -> rows from every source to every owner, kept for the layer's backward
/// then for each chunk and round, the next one's rows travelling while this one's are computed:
///   compute  experts_pack      a chunk's rows in expert order                     (source)
///   comm     experts_dispatch  each owner's rows of this round into its memory    (source -> owner)
///   compute  experts_forward   grouped by expert, computed                        (owner)
///   comm     experts_return    results to where the rows came from                (owner -> source)
///   compute  experts_combine   weighted sum of each token's results               (source)
/// Backward has the same stages; gradients travel with the inputs, and nobody counts again. Of a retained layer, owners keep what they received and Z in the
/// forward, up to a capacity, and gradients travel alone to those who did.
/// Every rank runs the same stages in the same order, whatever the counts are.
#pragma once

#include <map>
#include <memory>

#include <oom/expert_strategy.h>

#include "exchange_layout.h"
#include "row_work.h"

namespace oom::ep {

/// What a pass over a layer works with.
struct Pass {
  int layer = 0;
  std::vector<Delivery> shards;  ///< by owner
  RankBuffers order;             ///< of emit_order
  RankBuffers front;             ///< ExpertBuffers::front
  RankBuffers routing;           ///< ExpertBuffers::routing
  std::vector<RankBuffers> kept; ///< of add_kept; empty: nothing is kept
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(StepEmitter& emitter, const ExchangeShape& shape);

  const ExchangeShape& shape() const { return shape_; }
  /// How often an owner's weights are used in a pass: chunks x rounds.
  int visits() const { return shape_.chunks() * shape_.rounds(); }

  /// Sorts the layer's choices; returns transient buffers of every rank with the order of each chunk. `counts`: for emit_counts. `retain`: from the
  /// forward to the backward.
  RankBuffers emit_order(int layer, const RankBuffers& routing, bool counts, bool retain);
  /// Buffers of a retained layer, by visit and owner; empty for visits of which nothing can be kept.
  std::vector<RankBuffers> add_kept(int layer);
  /// After the forward's emit_order: makes the layer's row counts known to every rank's issuing thread.
  void emit_counts(int layer);
  /// Writes `routed`.
  void emit_forward(const Pass& pass, const RankBuffers& routed);
  /// Writes input and routing-weight gradients, and those of the experts into `targets` (by owner).
  void emit_backward(const Pass& pass, const ExpertGradientBuffers& gradients, const std::vector<GradientTarget>& targets);

 private:
  /// Buffers in turns, so that one is filled while another is read. [turn][part][rank]; a part is what one other rank's lane fills.
  struct Ring {
    std::vector<std::vector<RankBuffers>> turns;
    ParcelLayout layout;
    const std::vector<RankBuffers>& at(int visit) const { return turns[visit % turns.size()]; }
    std::vector<BufferId> parts(int visit, int rank) const;
  };
  /// Of an owner in one round of a chunk; in a sketch of a run of chunks.
  struct Visit {
    int index = 0;
    int chunk = 0;
    int round = 0;
    int chunks = 1;      // from `chunk` on
    int turn = 0;        // of rings by visit; `index` when every run is one chunk
    int chunk_turn = 0;  // of rings by chunk, likewise
  };
  struct Stages;  // emits the stages of one pass

  Ring add_ring(const std::string& name, int turns, int64_t rows);
  void add_gradient_rings();
  std::vector<Visit> visits_in_order() const;
  TokenRange tokens(int chunk) const { return {shape_.chunk_begin(chunk), shape_.chunk_size(chunk)}; }
  Parcels parcels(const Ring& ring, int turn, int rank) const { return {emitter_.memory(), ring.at(turn)[0][rank], ring.layout}; }
  /// Rows of a chunk between all ranks, out of what counts_meet left on this rank. Inside actions.
  RowCounts row_counts(int layer, int rank, int chunk) const;
  /// Whether every owner has kept all rows of a chunk, of a layer whose visits have buffers for it.
  bool all_kept(RowCounts counts, int chunk) const;
  int64_t kept_bytes(int chunk, int round) const;
  ChunkOrder chunk_order(BufferId order, int chunk) const;
  /// Inside actions of the comm lane: copies rows, and the values beside them, to another rank's buffer.
  void push(const Parcels& from, int64_t from_row, const Parcels& to, int64_t to_row, int64_t rows, bool values, const StageContext& context) const;
  ops::ExpertWeights expert_weights(const Delivery& shard, int rank) const;

  StepEmitter& emitter_;
  const ExchangeShape shape_;
  std::vector<int64_t> alone_counts_;          // by chunk, of a single rank
  RankBuffers counts_;                         // int32 [chunks, E]: GPU, of the layer at hand
  std::map<int, RankBuffers> host_counts_;     // the same on the host, by layer
  std::map<int, RankBuffers> row_counts_;      // int64 [chunks, source, owner] on the host, by layer
  // Rows come back to where they came from: results replace what was computed from, at the owner and then at the source.
  Ring sent_, received_;                       // of a source's chunk, parts by owner; of an owner's visit, parts by source: inputs and experts
  Ring sent_gradients_, received_gradients_;   // likewise: gradients and routing weights; from the first backward on
};

}  // namespace oom::ep
