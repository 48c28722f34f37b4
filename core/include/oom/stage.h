/// The plain data of one training step: buffers, stages on lanes, edges. A Program holds no pointers, no actions and no device
/// handles, so that the verifier, the accountant, the simulator and the tests need no device. Built by ProgramBuilder (oom/program.h).
///
/// Time. Every lane executes its stages in emission order, step after step. A stage starts when its lane is free, when the stages it
/// names in `after` have completed (distance 0: in the same step, 1: in the step before), and not otherwise. Members of a collective
/// rendezvous: none completes before all have started.
///
/// Versions. A write makes version 1, 2, ... of its buffer within the step; a read names the version it needs. Version 0 is what
/// the step before left (its last version), or the initial content when no step writes the buffer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

/// Indices into the vectors of one Program. kNone stands for "no such thing".
using StageId = int32_t;
using BufferId = int32_t;
using KindId = int32_t;
using ShardId = int32_t;
using CollectiveId = int32_t;
inline constexpr int32_t kNone = -1;
inline constexpr int kMaxNumaNodes = 8;

/// Where a stage executes. The first five are CUDA streams of a rank (worker threads on the CPU device); issue is the thread that
/// launches them; prepare and update are pools of pinned host threads, one of each per NUMA node, whose leader runs the action.
enum class Lane : uint8_t { kCompute, kComm, kH2d, kD2h, kD2hExpert, kIssue, kPrepare, kUpdate };
inline constexpr int kLaneKinds = 8;
OOM_API const char* lane_name(Lane lane);
/// True for the lanes of a rank that are CUDA streams on a CUDA device.
constexpr bool is_stream_lane(Lane lane) { return lane < Lane::kIssue; }
/// True for the lanes that belong to a NUMA node rather than to a rank.
constexpr bool is_pool_lane(Lane lane) { return lane > Lane::kIssue; }

/// One lane: `index` is the rank, or the NUMA node of a pool lane.
struct LaneId {
  Lane lane = Lane::kCompute;
  int32_t index = 0;
  friend bool operator==(const LaneId&, const LaneId&) = default;
};

/// Memory: of a rank's device (also on the CPU device), or of a NUMA node.
struct Place {
  enum class Kind : uint8_t { kGpu, kNuma };
  Kind kind = Kind::kGpu;
  int32_t index = 0;
  static constexpr Place gpu(int32_t rank) { return {Kind::kGpu, rank}; }
  static constexpr Place numa(int32_t node) { return {Kind::kNuma, node}; }
  friend bool operator==(const Place&, const Place&) = default;
};
/// Returns "gpu 1" or "numa 0".
OOM_API std::string place_name(Place place);

enum class BufferClass : uint8_t {
  kFixed,          // context, libraries, tables: there for the whole run
  kState,          // FP32 masters and moments
  kWorkingWeight,  // weights as the operators read them: windows, BF16 copies
  kGradient,
  kBoundary,       // inputs of decoder layers
  kRetained,       // tensors that forward leaves for backward on the GPU
  kResult,         // attention O and LSE, routing, losses, counters
  kStaging,        // on the way between places
  kWorkspace,      // temporaries
};
inline constexpr int kBufferClasses = 9;
OOM_API const char* buffer_class_name(BufferClass buffer_class);

/// persistent: arena storage that lives as long as the program (windows, slots, state, all that peers or lanes of several ranks touch).
/// transient: exists from the start of its first writer to the end of its last user within one step. On a GPU it comes from a pool that is ordered by the stream
/// of that rank's compute lane: the first and the last stage that touch it are on that lane. In between other stream lanes of the rank may, ordered after
/// the first and before the last. On a NUMA node any lane may.
enum class Lifetime : uint8_t { kPersistent, kTransient };

struct Buffer {
  std::string name;
  Place place;
  int64_t bytes = 0;
  BufferClass buffer_class = BufferClass::kWorkspace;
  Lifetime lifetime = Lifetime::kPersistent;
  /// Buffers with equal `storage` occupy the same bytes (those of the buffer with that id), one after another. Its own id by default.
  BufferId storage = kNone;
  /// Versions that one step writes.
  int32_t versions = 0;
};

enum class AccessMode : uint8_t { kRead, kWrite, kUpdate };
/// A read of `version`; a write that makes `version`; an update that reads `version - 1` and makes `version` in place.
struct Access {
  BufferId buffer = kNone;
  int32_t version = 0;
  AccessMode mode = AccessMode::kRead;
};

/// Completion of `stage`, `distance` steps before (0 or 1).
struct Edge {
  StageId stage = kNone;
  int32_t distance = 0;
  friend bool operator==(const Edge&, const Edge&) = default;
};

/// What a stage draws while it runs. Zero means nothing. Seconds come out of a cost table (program/cost_table.h).
struct Cost {
  double fixed_seconds = 0;  // launches, latencies: nothing shares it
  double gemm_flops = 0;
  double attention_flops = 0;
  double other_flops = 0;
  double hbm_bytes = 0;  // read + written, of the stage's rank
  std::array<double, kMaxNumaNodes> host_bytes{};  // DRAM traffic read + written on each NUMA node
  double h2d_bytes = 0;  // PCIe of the stage's rank, each direction
  double d2h_bytes = 0;
  double peer_bytes = 0;  // sent to other GPUs by the stage's rank
  double update_parameters = 0;  // of the CPU AdamW, on a pool lane
  double convert_parameters = 0;  // FP32 masters made into working weights, on a pool lane
  double repeats = 1;  // of a sketch (ProgramUse): how many alike stages one after another this one is; it takes so many times what is said here
  double sm_share = 0;  // share of the GPU's multiprocessors that it takes from compute (NCCL kernels: about 0.1)
  /// Features for calibration; they price nothing by themselves.
  double tokens = 0;
  double sequence_length = 0;
  double bytes = 0;
  double parameters = 0;
  /// Device bytes that the stage allocates and frees while it runs, beyond its buffers.
  int64_t workspace_bytes = 0;
};

struct Stage {
  KindId kind = kNone;   // Program::kinds: "attention_forward"
  int32_t layer = kNone;
  int32_t part = kNone;  // slice, sub-batch, round: whatever the emitter counts
  int32_t rank = kNone;  // for a pool lane the rank on whose behalf it works, or kNone
  LaneId lane;
  std::vector<Access> accesses;
  /// Synchronisation that the executor performs, beyond lane order. No edge is implied by the others.
  std::vector<Edge> after;
  /// Orders that the emitter demanded explicitly; they hold, by `after` or otherwise.
  std::vector<Edge> demanded;
  CollectiveId collective = kNone;
  ShardId updates_shard = kNone;  // the one stage that updates this shard in a step
  bool step_result = false;       // run_step() returns only after its completion
  bool waits_on_stream = false;   // pool stages before it are waited for by its stream, not by its launch
  Cost cost;
};

/// All ranks issue the collectives of one communicator in one order, each rank on one lane.
struct Collective {
  int32_t communicator = kNone;  // Program::communicators
  std::vector<int32_t> ranks;    // one member stage on each
};

/// State of one layer with one owner and one updater.
struct Shard {
  std::string name;
  int32_t layer = kNone;
  int32_t rank = kNone;
};

struct Program {
  int32_t ranks = 1;
  int32_t nodes = 1;
  std::vector<int32_t> node_of_rank;  // NUMA node beside each rank's GPU
  std::vector<std::string> kinds;
  std::vector<std::string> communicators;
  std::vector<Collective> collectives;
  std::vector<Shard> shards;
  std::vector<Buffer> buffers;
  std::vector<Stage> stages;  // in emission order, which is a valid sequential execution

  const std::string& kind_of(StageId stage) const { return kinds[stages[stage].kind]; }
};

/// Returns "attention_forward layer 3 part 1 rank 0 (compute, stage 57)".
OOM_API std::string stage_name(const Program& program, StageId stage);
/// Returns "compute of rank 0" or "update of node 1".
OOM_API std::string lane_id_name(LaneId lane);
/// Returns the whole program as text, a line for each buffer and stage: for people and for golden tests.
OOM_API std::string describe(const Program& program);

}  // namespace abi_1
}  // namespace oom
