/// Streams parameter units: weights from the host into windows on the GPUs, gradients out to their owners, updates.
/// Part of ProgramEmitter: emits stages, runs nothing.
///
/// Units of one shape (elements, shard borders) form a class with its own windows and slots, so that a shard always lies in the same bytes of a
/// window and every hazard is one of named buffers:
///   GPU:  window[w][rank][shard], gradient[g][rank][shard], staging[owner][rank] (partials that peers push), norm
///   host: state[unit][shard], cached[unit][shard] (working weights), slot[k][shard] (gradients on their way to the update)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/device_transfer.h"
#include "oom/step_emitter.h"
#include "runtime/run_state.h"
#include "runtime/storage.h"

namespace oom::memory {
class WorkerPool;
}

namespace oom::runtime {

class UnitStream {
 public:
  /// What updates run on, by NUMA node. Empty while only planning.
  using UpdatePools = std::vector<memory::WorkerPool*>;

  UnitStream(ProgramBuilder& program, StepMemory& memory, StoragePlan& storage, const ModelDescription& model, const Plan& plan, RunState& run,
             comm::DeviceTransfer& transfer, const UpdatePools& pools, bool every_unit_updates);

  UnitId add(ParameterUnit unit);
  const ParameterUnit& unit(UnitId id) const { return units_.at(id).unit; }
  int count() const { return static_cast<int>(units_.size()); }

  /// Marks the updates that the step before left pending; the first delivery of each such unit emits its update.
  void begin_step();
  /// Emits the updates that no delivery asked for.
  void finish_pending();
  Delivery deliver(UnitId id);
  GradientTarget gradient_target(UnitId id);
  void retire(UnitId id);
  /// Host buffers with each retired shard's sum of squares (one double), by unit and shard.
  std::vector<BufferId> norms() const;
  /// Marks that the buffer which holds the clipping factor (one double, host) must be read by every update.
  void set_clip_buffer(BufferId clip) { clip_ = clip; }

  LayerWeights weights(const Delivery& delivery, int rank) const;
  LayerGradients gradients(const GradientTarget& target, int rank, bool accumulate) const;
  /// True when the unit's update waits for the next step.
  bool deferred(UnitId id) const;
  ElementType gradient_type(UnitId id) const;

 private:
  struct Record;
  struct Class;
  using ShardBuffers = std::vector<BufferId>;

  Class& class_of(UnitId id);
  const Class& class_of(UnitId id) const;
  void add_class_buffers(Class& shared, const ParameterUnit& unit);
  void emit_update(UnitId id);
  void add_shards(Record& record);
  std::vector<BufferId>& host_slot(UnitId id);
  Action update_action(UnitId id, size_t shard, const std::vector<BufferId>& slot) const;

  ProgramBuilder& program_;
  StepMemory& memory_;
  StoragePlan& storage_;
  const ModelDescription& model_;
  const Plan& plan_;
  RunState& run_;
  comm::DeviceTransfer& transfer_;
  const UpdatePools& pools_;
  const bool every_unit_updates_;  // a training step: the verifier then demands an updater for every shard
  BufferId clip_ = kNone;

  struct Record {
    ParameterUnit unit;
    int unit_class = 0;
    std::vector<BufferId> state, cached, norm;    // by shard
    std::vector<ShardId> shards;                  // by shard; empty until the program is known to update the unit
    std::vector<BufferId> pending_slot;           // by shard; deferred units keep their gradients in a slot of their own
    std::vector<BufferId> last_slot;              // the slot of the latest retirement
    int window = -1;                              // where the unit's current weights are, -1: nowhere
    bool pending = false;
  };
  struct Class {
    std::string name;
    UnitId first_unit = -1;
    int64_t elements = 0;
    std::vector<ShardRange> shards;
    ElementType gradient_type = ElementType::kBfloat16;  // on the GPU
    std::vector<std::vector<std::vector<BufferId>>> windows;    // [window][rank][shard]
    std::vector<UnitId> held;                                   // by window
    std::vector<std::vector<std::vector<BufferId>>> gradients;  // [buffer][rank][shard]
    std::vector<std::vector<BufferId>> staging;                 // [shard][rank]; the owner's own entry is kNone
    std::vector<BufferId> reduced;                              // [shard]: result where it cannot be left in place
    std::vector<BufferId> norm, scratch;                        // [shard], of the reduction
    std::vector<std::vector<BufferId>> slots;                   // [slot][shard]
    int next_window = 0, next_gradient = 0, next_slot = 0;
  };
  std::vector<Record> units_;
  std::vector<Class> classes_;
  std::map<UnitId, int> gradient_in_use_;  // which gradient buffer the latest target names
};

}  // namespace oom::runtime
