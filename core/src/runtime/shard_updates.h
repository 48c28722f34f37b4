/// AdamW of shards where their state lives: by the owner's node on its update lane, or by the owner's GPU on the lane that resident gradients leave free.
#pragma once

#include "runtime/unit_table.h"

namespace oom::runtime {

/// Throws DivergedError, with step, unit and rank, when a gradient's sum of squares is not finite.
void check_finite(double sum_of_squares, const std::string& unit, int owner, int64_t step);

class ShardUpdates {
 public:
  explicit ShardUpdates(UnitTable& units) : units_(units), context_(units.context()) {}

  /// Every update reads the clipping factor there (one double, on the host).
  void set_clip_buffer(BufferId clip) { clip_ = clip; }
  /// Emits the update of every shard of a unit; its gradients are where UnitRecord::gradient says.
  void emit(UnitId id);

 private:
  /// What both updates need of a shard, known at emission.
  struct Work {
    BufferId state, kept, norm, clip;
    std::vector<BufferId> gradient;
    int64_t count = 0;
    int owner = 0;
    int delay = 0;  // steps between the gradient and its update
    std::string name;
    std::vector<optim::ElementRange> undecayed, trained;  // of the shard: ranges that decay does not reach; ranges that updates reach
  };
  Work work_of(const UnitRecord& record, size_t shard) const;
  void emit_on_host(const UnitRecord& record, size_t shard);
  void emit_on_device(const UnitRecord& record, size_t shard);

  UnitTable& units_;
  const StreamContext& context_;
  BufferId clip_ = kNone;
};

}  // namespace oom::runtime
