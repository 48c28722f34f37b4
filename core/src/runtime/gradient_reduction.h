/// Gradients from the ranks that computed them to where their update reads them.
///   between GPUs   partials pushed to the owner, summed in FP32 in rank order and rounded once; the sum leaves for the host, or stays with
///                  resident state. The sum of squares is taken along.
///   on the host    every rank's partial leaves for a slot of its own; the update sums them as it reads. The sum of squares is taken before.
#pragma once

#include <map>

#include "runtime/unit_table.h"

namespace oom::runtime {

class GradientReduction {
 public:
  explicit GradientReduction(UnitTable& units) : units_(units), context_(units.context()) {}

  GradientTarget target(UnitId id);
  LayerGradients sinks(const GradientTarget& target, int rank, bool accumulate) const;
  /// Emits the reduction of what the latest target received; UnitRecord::gradient then names what the update reads.
  void reduce(UnitId id);

 private:
  const std::vector<ShardBuffers>& computed(UnitId id) { return units_.class_of(id).gradient[in_use_.at(id)]; }
  // Between GPUs.
  void gather(UnitId id);
  void sum(UnitId id);
  void take_out(const UnitRecord& record, size_t shard, BufferId from, BufferId norm);
  void stay(const UnitRecord& record, size_t shard);
  // On the host.
  void take_partials_out(UnitId id);
  const ShardBuffers& leaving(UnitId id, int rank);
  void measure(const UnitRecord& record, size_t shard);

  UnitTable& units_;
  const StreamContext& context_;
  std::map<UnitId, int> in_use_;  // which gradient buffer the latest target names
};

}  // namespace oom::runtime
