// What programs contain under a policy. Emission verifies each: a plan that comes back holds.
#include <algorithm>

#include "offload_run.h"

namespace oom::offload {
namespace {

using runtime::PlannedRun;

class OffloadProgram : public OffloadRun {
 protected:
  static int count(const Program& program, const std::string& kind, int layer) {
    return static_cast<int>(std::count_if(program.stages.begin(), program.stages.end(), [&](const Stage& stage) { return program.kinds[stage.kind] == kind && stage.layer == layer; }));
  }
  // Without the device memory of the CPU device.
  static int64_t host_bytes(const PlannedRun& run, BufferClass buffer_class) {
    int64_t bytes = 0;
    for (const Buffer& buffer : run.program.buffers) bytes += buffer.place.kind == Place::Kind::kNuma && buffer.buffer_class == buffer_class ? buffer.bytes : 0;
    return bytes;
  }
  // Whether a slot's memory is there while a stage of the compute lane runs.
  static bool lives_at(const Program& program, BufferId buffer, StageId stage) {
    StageId first = kNone, last = kNone;
    for (StageId id = 0; id < static_cast<StageId>(program.stages.size()); ++id) {
      for (const Access& access : program.stages[id].accesses) {
        if (access.buffer != buffer) continue;
        if (first == kNone) first = id;
        last = id;
      }
    }
    return first != kNone && first <= stage && stage <= last;
  }
  static int layers(const PlannedRun& run) {
    int most = 0;
    for (const Stage& stage : run.program.stages) most = std::max(most, stage.layer + 1);
    return most;
  }
};

TEST_F(OffloadProgram, AttendsOnceWhereResultsAreKept) {
  const PlannedRun run = plan("qwen3_moe", {"engine.ranks=2", "offload.keep_attention=all", "offload.keep_boundaries=3+1"});
  for (int layer = 0; layer < layers(run); ++layer) {
    EXPECT_EQ(count(run.program, "mixer_forward", layer), 2) << layer;
    EXPECT_EQ(count(run.program, "mixer_replay", layer), 0) << layer;
    EXPECT_EQ(count(run.program, "mixer_replay_kept", layer), 2) << layer;
    EXPECT_EQ(count(run.program, "attention_out", layer), 2) << layer;
  }
}

TEST_F(OffloadProgram, AttendsOnceForEachGroupWhereResultsAreKept) {
  const PlannedRun run = plan("qwen3_moe", {"offload.keep_attention=all", "offload.attention_head_group=2"});
  for (int layer = 0; layer < layers(run); ++layer) {
    EXPECT_EQ(count(run.program, "attend", layer), 4) << layer;
    EXPECT_EQ(count(run.program, "attend_replay", layer), 0) << layer;
    EXPECT_EQ(count(run.program, "attend_backward", layer), 4) << layer;
  }
}

TEST_F(OffloadProgram, AttendsTwiceWithoutKeep) {
  const PlannedRun run = plan("qwen3_moe", {"offload.attention_head_group=2", "offload.keep_attention=none"});
  EXPECT_EQ(count(run.program, "attend", 4), 4);
  EXPECT_EQ(count(run.program, "attend_replay", 4), 4);
}

TEST_F(OffloadProgram, StoresWhatItIsTold) {
  const int64_t boundary = kBatch * length_of("qwen3_moe") * 64 * 4;
  const PlannedRun all = plan("qwen3_moe", {}), some = plan("qwen3_moe", {"offload.keep_boundaries=3+1"}), gpu = plan("qwen3_moe", {"offload.boundaries_on_gpu=[0, 1]"});
  EXPECT_EQ(host_bytes(all, BufferClass::kBoundary), 7 * boundary);  // inputs of the last two never leave
  EXPECT_EQ(host_bytes(some, BufferClass::kBoundary), 2 * boundary);
  EXPECT_EQ(host_bytes(gpu, BufferClass::kBoundary), 5 * boundary);
}

// Layers 4 to 8 of a 3+1 run: 5, 6 and 7 are regenerated. Held three at once, or one.
TEST_F(OffloadProgram, RegeneratesWithinTheCap) {
  const PlannedRun once = plan("qwen3_moe", {"offload.keep_boundaries=3+1", "offload.buffers=2"});
  EXPECT_EQ(count(once.program, "combine_replay", 4), 1);
  EXPECT_EQ(count(once.program, "combine_replay", 6), 1);
  EXPECT_EQ(count(once.program, "combine_replay", 7), 0);
  const PlannedRun often = plan("qwen3_moe", {"offload.keep_boundaries=3+1", "offload.buffers=2", "offload.regenerate_cap=1"});
  EXPECT_EQ(count(often.program, "combine_replay", 4), 3);
  EXPECT_EQ(count(often.program, "combine_replay", 6), 1);
}

// One buffer of layer inputs is all that there is of them on the GPU, regenerated ones included.
TEST_F(OffloadProgram, OneBufferHoldsEveryInput) {
  const PlannedRun run = plan("qwen3_moe", {"offload.keep_boundaries=3+1", "offload.buffers=1", "offload.regenerate_cap=1"});
  int64_t inputs = 0;
  for (const Buffer& buffer : run.program.buffers) inputs += buffer.place.kind == Place::Kind::kGpu && buffer.buffer_class == BufferClass::kBoundary ? buffer.bytes : 0;
  EXPECT_EQ(inputs, kBatch * length_of("qwen3_moe") * 64 * 4);
  EXPECT_EQ(count(run.program, "combine_replay", 4), 3);  // for the inputs of 5, 6 and 7
  EXPECT_EQ(count(run.program, "boundary_in", 4), 4);     // which take its place
}

// Beside grouped attention's backward there is its own input, and its own results, whatever may be on its way elsewhere; and the next input is there to be filled before the layer ends.
TEST_F(OffloadProgram, NothingOfOtherLayersIsThereBesideGroupedAttention) {
  const int64_t boundary = kBatch * length_of("qwen3_moe") * 64 * 4, results = kBatch * length_of("qwen3_moe") * (8 * 16 + 8) * 4;
  for (const char* buffers : {"2", "3", "5"}) {
    for (const char* inputs : {"all", "3+1"}) {
      const PlannedRun run = plan("qwen3_moe", {"offload.keep_attention=all", "offload.attention_head_group=2", cat("offload.buffers=", buffers), cat("offload.keep_boundaries=", inputs), "offload.regenerate_cap=1"});
      int groups = 0, ahead = 0;
      for (const LiveBytes& live : run.account.gpus.front().live) {
        const std::string& kind = run.program.kind_of(live.stage);
        const auto of = [&](BufferClass buffer_class) { return live.classes[static_cast<size_t>(buffer_class)] - run.account.gpus.front().persistent[static_cast<size_t>(buffer_class)]; };
        if (kind == "attend_backward") {
          ++groups;
          EXPECT_EQ(of(BufferClass::kBoundary), boundary) << stage_name(run.program, live.stage) << ", " << buffers << " buffers, " << inputs;
        }
        if (kind == "enter_backward") ahead += of(BufferClass::kBoundary) > boundary;
        EXPECT_LE(of(BufferClass::kBoundary), (std::stoll(buffers) + 2) * boundary) << stage_name(run.program, live.stage);
        if (kind == "attend_backward") {
          int64_t kept = 0;
          for (size_t id = 0; id < run.program.buffers.size(); ++id) kept += run.program.buffers[id].name.starts_with("kept attention results layer ") && lives_at(run.program, static_cast<BufferId>(id), live.stage) ? run.program.buffers[id].bytes : 0;
          EXPECT_EQ(kept, results) << stage_name(run.program, live.stage);
        }
      }
      EXPECT_EQ(groups, 9 * 4);
      EXPECT_GE(ahead, std::string(inputs) == "all" ? 8 : 2) << buffers;
    }
  }
}

// Where attention is not cut, as many inputs are on their way as are asked for.
TEST_F(OffloadProgram, InputsComeAheadOfUse) {
  const int64_t boundary = kBatch * length_of("qwen3_moe") * 64 * 4;
  for (const int64_t buffers : {2, 3, 5}) {
    const PlannedRun run = plan("qwen3_moe", {cat("offload.buffers=", buffers)});
    int64_t most = 0;
    for (const LiveBytes& live : run.account.gpus.front().live) {
      const int64_t inputs = live.classes[static_cast<size_t>(BufferClass::kBoundary)];
      most = std::max(most, inputs);
      if (run.program.kind_of(live.stage) != "mixer_backward" || run.program.stages[live.stage].layer < buffers) continue;
      EXPECT_EQ(inputs, buffers * boundary) << stage_name(run.program, live.stage);
    }
    EXPECT_EQ(most, buffers * boundary);
  }
}

// The layer passed last is differentiated next but one; its weights are still in their window.
TEST_F(OffloadProgram, DeliversTheLastTraversedLayerOnce) {
  const PlannedRun run = plan("qwen3_moe", {"offload.keep_boundaries=1+1", "offload.buffers=2"});
  // Layer 6 is passed to make the input of 7: forward, regeneration and backward are two deliveries of two units.
  EXPECT_EQ(count(run.program, "weights_in", 6), 4);
}

// Of a feed-forward whose backward needs no result of its own, the replay ends at the activation: no product with the experts' last weights, no sum.
TEST_F(OffloadProgram, ReplayEndsWhereNobodyReadsOn) {
  const PlannedRun run = plan("qwen3_moe", {});
  EXPECT_EQ(count(run.program, "combine_replay", 3), 0);
  const auto flops = [&](const std::string& kind) {
    double sum = 0;
    for (const Stage& stage : run.program.stages) sum += run.program.kinds[stage.kind] == kind && stage.layer == 3 ? stage.cost.gemm_flops : 0;
    return sum;
  };
  EXPECT_DOUBLE_EQ(flops("experts_replay"), flops("experts_forward") * 2 / 3);
}

// Where attention results are kept, slices of windows are replayed without attending, whose state the backward needs.
TEST_F(OffloadProgram, SlicesOfWindowsAttendOnceWhereResultsAreKept) {
  const PlannedRun run = plan("gemma4", {"offload.attention_chunk=10", "offload.keep_attention=all", "offload.attention_head_group=2"});
  EXPECT_EQ(count(run.program, "mixer_forward", 1), kBatch * 3);
  EXPECT_EQ(count(run.program, "mixer_replay_kept", 1), kBatch * 3);
  EXPECT_EQ(count(run.program, "mixer_rebuilt_backward", 1), kBatch * 3);
  EXPECT_EQ(count(run.program, "mixer_replay", 1), 0);
  EXPECT_EQ(count(run.program, "attend", 5), 2);  // not a window
}

TEST_F(OffloadProgram, ReleasesOneSliceAtATime) {
  const PlannedRun whole = plan("qwen3_moe", {}), cut = plan("qwen3_moe", {"offload.moe_chunk=8", "offload.attention_head_group=1"});
  const auto transient = [](const PlannedRun& run) { return run.account.gpus.front().peak_bytes - run.account.gpus.front().persistent_bytes; };
  EXPECT_LT(transient(cut), transient(whole));
}

TEST_F(OffloadProgram, KeepsTheFeedForwardWholeUnderEp) {
  const PlannedRun run = plan("qwen3_moe", {"engine.experts=ep", "offload.moe_chunk=8", "offload.sub_batch=2"});
  EXPECT_EQ(count(run.program, "router_forward", 3), 1);
  EXPECT_EQ(count(run.program, "mixer_forward", 3), 3);
}

}  // namespace
}  // namespace oom::offload
