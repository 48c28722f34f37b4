/// Working weights from where they are kept or made into windows on the GPUs that compute with them.
///   streamed, kept     cached on the host            h2d to one rank or to each
///   streamed, made     masters -> prepared (prepare) h2d as above
///   resident, kept     beside the state              a copy on the owner's GPU, or read in place
///   resident, made     masters -> window, on the owner's GPU
/// A slice that one rank has reaches the others from GPU to GPU.
#pragma once

#include "runtime/unit_table.h"

namespace oom::runtime {

class WeightDelivery {
 public:
  explicit WeightDelivery(UnitTable& units) : units_(units), context_(units.context()) {}

  /// Emits the stages that bring a unit's weights; nothing when they are there already.
  Delivery deliver(UnitId id);
  /// No window holds anything yet.
  void begin_step();
  LayerWeights weights(const Delivery& delivery, int rank) const;

 private:
  void take_window(UnitId id);
  void bring_resident(const UnitRecord& record, size_t shard, const std::vector<ShardBuffers>& window);
  void bring_streamed(const UnitRecord& record, size_t shard, BufferId from, const std::vector<ShardBuffers>& window);
  /// Makes the weights of every shard on the host and returns where.
  const ShardBuffers& prepare(UnitId id);
  void hand_on(const UnitRecord& record, size_t shard, BufferId from, const std::vector<ShardBuffers>& window);

  UnitTable& units_;
  const StreamContext& context_;
};

}  // namespace oom::runtime
