// Whole training steps with the plugin: order of completion must not show in any bit, and memory that nobody wrote must reach nothing.
#include "expert_parallel_run.h"

namespace oom::runtime {
namespace {

TEST_F(ExpertParallelRun, DelaysDoNotShow) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{"engine.ranks=4", "ep.routing_chunk=7", "ep.receive_rows=30", "train.updates=overlapped"},
                                                    std::vector<std::string>{"engine.ranks=2", "ep.routing_chunk=24", "train.updates=deferred", "train.clip_norm=0.5"},
                                                    std::vector<std::string>{"engine.ranks=4", "ep.receive_rows=50", "train.updates=overlapped", "precision.compute=fp32"}}) {
    const Outcome expected = train(overrides);
    for (unsigned seed = 1; seed <= 3; ++seed) EXPECT_TRUE(train(overrides, delayed(seed)) == expected) << overrides[0] << " " << overrides[1] << ", seed " << seed;
  }
}

// What a rank receives fills buffers only in part; the rest is NaN here.
TEST_F(ExpertParallelRun, UnwrittenMemoryReachesNothing) {
  const std::vector<std::string> overrides{"engine.ranks=4", "ep.routing_chunk=7", "ep.receive_rows=30"};
  EXPECT_TRUE(train(overrides, {.poison = true}) == train(overrides));
}

// Choices differ by plan, results by rounding alone.
TEST_F(ExpertParallelRun, PlansAgree) {
  const Outcome local = train({"engine.ranks=1", "engine.experts=local", "precision.compute=fp32"});
  for (const char* ranks : {"engine.ranks=1", "engine.ranks=2", "engine.ranks=8"}) {
    const Outcome outcome = train({ranks, "ep.routing_chunk=5", "ep.receive_rows=33", "precision.compute=fp32"});
    for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(outcome.losses[step], local.losses[step], 1e-5 * local.losses[step]) << ranks << ", step " << step + 1;
  }
}

// An exchange that fails on one rank ends the run with that stage's name.
TEST_F(ExpertParallelRun, FailureNamesTheStage) {
  EngineOptions options;
  options.before_stage = [](const StageContext& context) {
    if (context.rank == 1 && context.stage->layer == 1 && context.stage->lane.lane == Lane::kComm) throw DeviceError("link down");
  };
  try {
    train({"engine.ranks=2"}, options);
    FAIL() << "no failure";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace oom::runtime
