/// The parameter units of a program and the buffers they live in and pass through.
///
/// A unit's state has one home: the NUMA node beside each shard's owner (streamed), or the owner's GPU (resident). Units of one shape (elements,
/// shard borders) form a class with its own windows and slots, so that a shard always lies in the same bytes of a window and every hazard is one of
/// named buffers. What a class needs depends on the units in it, so its buffers are added when first asked for; programs of one plan share by name.
/// In a plan with one window the vocabulary, which is used at the ends of a step alone, takes turns with a bank in the bank's memory, where a rank has either whole.
///   GPU:  window[w][rank][shard], gradient[g][rank][shard], partial[owner][rank] (that peers push), reduced, rounded, norm, scratch
///   host: prepared[k][shard] (weights on their way to a window), slot[k][shard] (gradients on their way to the update)
///   home: state, kept working weights, pending gradients
#pragma once

#include <vector>

#include "oom/step_emitter.h"
#include "runtime/stream_context.h"

namespace oom::runtime {

using ShardBuffers = std::vector<BufferId>;
/// Partial gradients that an update sums, in rank order, by shard.
using ShardPartials = std::vector<std::vector<BufferId>>;

struct UnitRecord {
  ParameterUnit unit;
  int unit_class = 0;
  std::vector<int> readers;
  bool resident = false;       // state on the owners' GPUs
  bool deferred = false;       // its update waits for the next step
  bool host_reduced = false;   // the ranks' partials are summed by the host's update
  ShardBuffers state;          // at home
  ShardBuffers kept;           // working weights at home, published by the update; kNone: made at each delivery
  ShardBuffers norm;           // on the host: the gradient's sum of squares, one double
  ShardBuffers device_norm;    // resident: the same where the update reads it
  std::vector<ShardId> shards; // empty until the program is known to update the unit
  ShardPartials pending;       // deferred: gradients of its own, at home
  ShardPartials gradient;      // of the latest retirement
  int window = -1;             // where the current weights are; -1: nowhere
  bool update_pending = false;

  Place home(size_t shard, const Plan& plan) const;
  bool bank() const { return unit.kind == UnitKind::kBank; }
  /// The lane on which gradients leave the GPU; where none leave, it is free for the update there.
  Lane way_out() const { return bank() ? Lane::kD2hExpert : Lane::kD2h; }
  /// Kept by one rank as a whole: operators read the weights where they are.
  bool read_in_place() const { return resident && unit.shards.size() == 1 && readers == std::vector{unit.shards[0].owner} && kept[0] != kNone; }
};

struct UnitClass {
  std::string name;
  ParameterUnit shape;                                 // its first unit
  std::vector<int> readers;
  ElementType gradient_type = ElementType::kBfloat16;  // on the GPU, before reduction
  int windows = 0, gradient_slots = 0;
  std::vector<std::vector<ShardBuffers>> window;       // [window][rank]
  std::vector<UnitId> held;                            // by window
  int takes_turns_with = -1;                           // the class in whose window it lies, or which lies in its window; -1: none
  std::vector<std::vector<ShardBuffers>> gradient;     // [buffer][rank]
  std::vector<ShardBuffers> partial;                   // [shard][rank]; the owner's own entry is kNone
  ShardBuffers reduced;                                // sums that cannot be left in place
  std::vector<ShardBuffers> rounded;                   // [rank]: partials in the type in which they leave
  ShardBuffers norm, scratch;                          // of the reduction, on the owner's GPU
  std::vector<ShardBuffers> prepared;                  // [slot]
  std::vector<ShardPartials> slots;                    // [slot]
  int next_window = 0, next_gradient = 0, next_prepared = 0, next_slot = 0;

  const std::vector<ShardRange>& shards() const { return shape.shards; }
};

class UnitTable {
 public:
  /// `every_unit_updates`: a training step; the verifier then demands an updater for every shard.
  UnitTable(StreamContext context, bool every_unit_updates);

  UnitId add(ParameterUnit unit);
  int count() const { return static_cast<int>(records_.size()); }
  UnitRecord& record(UnitId id) { return records_.at(id); }
  const UnitRecord& record(UnitId id) const { return records_.at(id); }
  UnitClass& class_of(UnitId id) { return classes_.at(records_.at(id).unit_class); }
  const UnitClass& class_of(UnitId id) const { return classes_.at(records_.at(id).unit_class); }
  /// Nobody finds anything any more in windows that take turns with those of `shared`.
  void empty_windows_beside(const UnitClass& shared);
  const StreamContext& context() const { return context_; }
  void add_shards(UnitRecord& record) const;

  // Buffers of classes and units, added at their first use.
  void need_windows(UnitClass& shared);
  void need_gradients(UnitClass& shared);
  /// Partials that peers push, norm and scratch of a reduction between GPUs.
  void need_reduction(UnitClass& shared) const;
  const ShardBuffers& need_reduced(UnitClass& shared) const;
  const ShardBuffers& need_rounded(UnitClass& shared, int rank) const;
  /// The next slot of the ring of weights on their way to a window.
  const ShardBuffers& next_prepared(UnitClass& shared) const;
  /// Where a streamed unit's gradients wait on the host: the next slot of the class's ring, or buffers of the unit's own where they wait for the next step.
  const ShardPartials& next_slot(UnitId id);
  /// Buffers at home for gradients that wait for the next step.
  const ShardPartials& need_pending(UnitRecord& record) const;

 private:
  bool is_resident(const ParameterUnit& unit) const;
  bool is_deferred(const ParameterUnit& unit) const;
  UnitClass make_class(const ParameterUnit& unit) const;
  ShardBuffers add_range(const UnitClass& shared, const std::string& name, int rank, int64_t element_size, BufferClass buffer_class) const;
  /// The class of banks in whose buffers those of `shared` may lie in turn; null: there is none.
  UnitClass* bank_beside(const UnitClass& shared);
  ShardBuffers add_lent(const UnitClass& shared, const std::string& name, int rank, int64_t element_size, BufferClass buffer_class, const ShardBuffers& lender) const;
  ShardPartials add_slot(const UnitRecord& record, const std::string& name) const;
  void add_state_access(int rank);

  StreamContext context_;
  const bool every_unit_updates_;
  const std::vector<int> waiting_;  // layers whose updates wait
  std::vector<UnitRecord> records_;
  std::vector<UnitClass> classes_;
  std::vector<bool> state_access_;  // by rank
};

}  // namespace oom::runtime
