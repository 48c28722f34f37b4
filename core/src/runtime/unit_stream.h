/// Streams parameter units: weights to the GPUs, gradients to their owners, updates. Part of ProgramEmitter: emits stages, runs nothing.
/// UnitTable says where units live, WeightDelivery, GradientReduction and ShardUpdates emit; here is the order of a step.
#pragma once

#include "runtime/gradient_reduction.h"
#include "runtime/shard_updates.h"
#include "runtime/unit_table.h"
#include "runtime/weight_delivery.h"

namespace oom::runtime {

class UnitStream {
 public:
  /// `every_unit_updates`: a training step.
  UnitStream(const StreamContext& context, bool every_unit_updates) : units_(context, every_unit_updates), delivery_(units_), reduction_(units_), updates_(units_) {}
  UnitStream(const UnitStream&) = delete;  // its parts, and actions, refer to it
  UnitStream& operator=(const UnitStream&) = delete;

  UnitId add(ParameterUnit unit) { return units_.add(std::move(unit)); }
  const ParameterUnit& unit(UnitId id) const { return units_.record(id).unit; }
  const UnitRecord& record(UnitId id) const { return units_.record(id); }
  int count() const { return units_.count(); }

  /// Marks the updates that the step before left pending; the first delivery of each such unit emits its update.
  void begin_step();
  /// Emits the updates that no delivery asked for.
  void finish_pending();
  Delivery deliver(UnitId id);
  GradientTarget gradient_target(UnitId id) { return reduction_.target(id); }
  void retire(UnitId id);
  /// Host buffers with each retired shard's sum of squares (one double), by unit and shard.
  std::vector<BufferId> norms() const;
  void set_clip_buffer(BufferId clip) { updates_.set_clip_buffer(clip); }

  LayerWeights weights(const Delivery& delivery, int rank) const { return delivery_.weights(delivery, rank); }
  LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const { return reduction_.sinks(target, rank, accumulate); }

 private:
  UnitTable units_;
  WeightDelivery delivery_;
  GradientReduction reduction_;
  ShardUpdates updates_;
};

}  // namespace oom::runtime
