/// Builds the StepProgram of a plan. Strategies emit stages through ProgramBuilder in a logical SEQUENTIAL order, as if one thread
/// executed one after another: forward layer by layer, then backward, then updates. A read means the latest version at that point
/// of emission. From the declared reads, writes and updates the builder derives every hazard (read after write, write after read,
/// write after write, within the step and into the next one) and adds the fewest edges that keep them; lane order does the rest.
///
/// So prefetch needs no code: an h2d stage emitted just before its consumer starts as soon as its window is free and its lane idle.
/// Emit the stages of different lanes in the order in which you want them to be issued; only the order within a lane is kept.
///
///   BufferId window = program.add_buffer({.name = "window 0", .place = Place::gpu(0), .bytes = n, .buffer_class = BufferClass::kWorkingWeight});
///   program.emit({.kind = "weights_in", .layer = 3, .lane = {Lane::kH2d, 0}, .reads = {cached}, .writes = {window},
///                 .cost = {.h2d_bytes = n, .bytes = n}, .action = [=](StageContext& context) { ... }});
///   program.emit({.kind = "mlp_forward", .layer = 3, .lane = {Lane::kCompute, 0}, .reads = {window, x}, .writes = {y}, ...});
///
/// Grain: what one stage writes is ordered as a whole. Parts that different lanes write independently are buffers of their own;
/// parts that one lane writes one after another are `writes` by the first stage and `updates` by the others.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "oom/stage.h"

namespace oom {
inline namespace abi_1 {

/// What an action is told. Valid during the call.
struct StageContext {
  const Stage* stage = nullptr;
  int64_t step = 0;
  int32_t rank = kNone;    // Stage::rank
  void* stream = nullptr;  // the lane's cudaStream_t; null on the CPU device, on the issue lane and on pool lanes
  const std::atomic<bool>* abort = nullptr;  // set when another stage failed: long host loops and waits poll it and return

  bool aborted() const { return abort != nullptr && abort->load(std::memory_order_relaxed); }
};

/// The work of a stage. On a CUDA stream lane it enqueues work on `stream` and returns, on the rank's issuing thread; on the issue
/// lane, on pool lanes and everywhere on the CPU device it works and returns when done. Throws to stop the run: the error names
/// the stage, the other ranks are released. Runs once a step, never twice at once. Null does nothing.
using Action = std::function<void(StageContext&)>;

struct BufferSpec {
  std::string name;
  Place place;
  int64_t bytes = 0;
  BufferClass buffer_class = BufferClass::kWorkspace;
  Lifetime lifetime = Lifetime::kPersistent;
  BufferId shares = kNone;  // an earlier persistent buffer of the same place whose bytes this one occupies in turn
};

struct StageSpec {
  std::string_view kind;
  int32_t layer = kNone;
  int32_t part = kNone;
  int32_t rank = kNone;  // only for pool lanes; elsewhere the lane's
  LaneId lane;
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;   // overwritten whole: nothing of what was there before is needed
  std::vector<BufferId> updates;  // read and written in place: accumulation, further parts. Summation order is emission order
  std::vector<Edge> after;        // orders that no buffer explains; see also add_order()
  CollectiveId collective = kNone;
  ShardId updates_shard = kNone;
  bool step_result = false;       // run_step() waits for it: losses, norms, metrics
  /// On a CUDA stream lane: the action only enqueues copies, so that host memory is looked at when the stream gets there, and it may be launched before
  /// the pool stages that it comes after are complete. Without it the rank's issuing thread waits for them, and with it all that is emitted later.
  bool waits_on_stream = false;
  Cost cost;
  Action action;
};

struct BuiltProgram {
  Program program;
  std::vector<Action> actions;  // by StageId
};

/// What a program is built for. Only what is run keeps its actions, which are most of what it holds.
enum class ProgramUse : uint8_t {
  kRun,
  kJudge,   // read only: stage by stage what would be run
  kSketch,  // likewise, but many alike stages in a row may be one with Cost::repeats: the same peaks of memory and nearly the same time. A search builds these by the dozen
};

class OOM_API ProgramBuilder {
 public:
  /// `node_of_rank[r]` is the NUMA node beside rank r's GPU; its size is the number of ranks.
  ProgramBuilder(std::vector<int32_t> node_of_rank, int32_t nodes, ProgramUse use = ProgramUse::kRun);
  ~ProgramBuilder();
  ProgramBuilder(ProgramBuilder&&) noexcept;

  ProgramUse use() const;
  int32_t ranks() const;
  int32_t nodes() const;
  int32_t node_of_rank(int32_t rank) const;

  BufferId add_buffer(BufferSpec spec);
  /// Every shard must be updated by exactly one stage.
  ShardId add_shard(std::string name, int32_t layer, int32_t rank);
  /// Begins a collective: emit one stage with this id on each of `ranks`, before the next collective of the same communicator.
  CollectiveId add_collective(std::string_view communicator, std::vector<int32_t> ranks);

  /// Appends a stage. Throws Error, with the stage's name, when an id is unknown, a transient is read before it is written or
  /// touched from a wrong lane, or a buffer's content was overwritten by another that shares its bytes. The stage of the compute lane that touches
  /// a transient of a GPU last ends its life and is made to wait for those of other lanes.
  /// A builder that threw can only be destroyed.
  StageId emit(StageSpec spec);

  /// Demands that `after` starts only when `before` has completed, `distance` steps earlier: for orders that no buffer explains.
  /// With distance 0, `before` must have been emitted first.
  void add_order(StageId before, StageId after, int32_t distance);

  const Buffer& buffer(BufferId buffer) const;
  int32_t stage_count() const;

  /// Derives the edges. Throws Error when explicit orders and collectives make a circle, naming the stages in it, and when another lane than compute is the
  /// last to touch a transient of a GPU.
  BuiltProgram build() &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace abi_1
}  // namespace oom
