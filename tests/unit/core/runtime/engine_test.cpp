// The engine as a whole on the CPU device: bit-identical under delays and poison, every failure ends the run, and the next one works.
#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "engine_run.h"

namespace oom::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 4;

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> state;
  bool operator==(const Trained&) const = default;
};

class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  Trained train(EngineOptions options = {}, std::vector<std::string> overrides = {}) {
    overrides.push_back(GetParam());
    EngineRun run(config_, overrides, std::move(options));
    Trained trained;
    for (int step = 1; step <= kSteps; ++step) {
      const StepResult result = run.train(step);
      trained.losses.push_back(result.loss());
      trained.norms.push_back(result.grad_norm);
    }
    trained.state = run.state();
    return trained;
  }

  oom::testing::ScratchFolder folder_;
  std::string config_ = write_run(folder_);
};

INSTANTIATE_TEST_SUITE_P(Updates, EngineTest, ::testing::Values("train.updates=overlapped", "train.updates=deferred", "train.clip_norm=0.5"),
                         [](const auto& info) { return info.index == 0 ? "overlapped" : info.index == 1 ? "deferred" : "clipped"; });

TEST_P(EngineTest, Learns) {
  const Trained trained = train();
  EXPECT_NEAR(trained.losses[0], std::log(kVocabulary), 0.5);
  EXPECT_GT(trained.norms[0], 0);
  EXPECT_NE(trained.losses[1], trained.losses[0]);
}

TEST_P(EngineTest, DelaysChangeNoBit) {
  const Trained expected = train();
  for (unsigned seed = 1; seed <= 3; ++seed) {
    EngineOptions options;
    options.before_stage = [seed, calls = std::make_shared<std::atomic<unsigned>>(0)](const StageContext&) {
      std::minstd_rand generator(seed * 7919 + calls->fetch_add(1));
      generator.discard(3);
      if (generator() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(generator() % 1500));
    };
    EXPECT_TRUE(train(options) == expected) << "delays of seed " << seed;
  }
}

// What was never written is NaN then: nothing of it may reach a result.
TEST_P(EngineTest, PoisonedMemoryChangesNoBit) {
  EngineOptions options;
  options.poison = true;
  EXPECT_TRUE(train(options) == train());
}

TEST_P(EngineTest, AFailureInAnyLaneEndsTheRunAndTheNextRunWorks) {
  const Trained expected = train();
  // Nothing is prepared while weights are cached.
  for (const Lane lane : {Lane::kCompute, Lane::kComm, Lane::kH2d, Lane::kD2h, Lane::kD2hExpert, Lane::kIssue, Lane::kUpdate}) {
    EngineOptions options;
    options.before_stage = [lane](const StageContext& context) {
      if (context.stage->lane.lane == lane && context.step == 2) throw DeviceError("injected failure");
    };
    const auto begin = std::chrono::steady_clock::now();
    try {
      train(options);
      ADD_FAILURE() << "a failure on lane " << lane_name(lane) << " went unnoticed";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected failure"));
      EXPECT_THAT(error.what(), HasSubstr(cat("(", lane_name(lane))));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << lane_name(lane);
  }
  EXPECT_TRUE(train() == expected);
}

TEST_P(EngineTest, WatchdogNamesTheStageThatHangs) {
  EngineOptions options;
  options.watchdog_seconds = 0.5;
  options.before_stage = [](const StageContext& context) {
    if (context.step != 2 || context.stage->lane != LaneId{Lane::kH2d, 1}) return;
    while (!context.aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  try {
    train(options);
    ADD_FAILURE() << "the watchdog let it hang";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("watchdog"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 (h2d, stage "));
  }
}

TEST_P(EngineTest, ANonFiniteWeightDivergesAndIsNamed) {
  EngineRun run(config_, {GetParam()});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  run.engine().state().write(2, optim::StatePart::kMaster, 5, std::span(&nan, 1));
  run.engine().publish_weights();
  try {
    for (int step = 1; step <= kSteps; ++step) run.train(step);
    run.engine().drain();
    ADD_FAILURE() << "trained on NaN";
  } catch (const DivergedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 1"));
    EXPECT_THAT(error.what(), HasSubstr("rank "));
  }
}

// Most ranks and rows have nothing to say then; the mean is over the one target that counts.
TEST_P(EngineTest, AllTargetsIgnoredButOne) {
  std::vector<double> losses;
  for (const char* ranks : {"engine.ranks=1", "engine.ranks=2", "engine.ranks=4"}) {
    EngineRun run(config_, {GetParam(), ranks});
    std::vector<data::Batch> batches = run.batches(1);
    for (data::Batch& batch : batches) {
      for (int32_t& target : batch.targets) target = data::kIgnoredTarget;
      batch.valid_targets = 0;
    }
    data::Batch& last = batches.back();
    last.targets.back() = 11;
    last.valid_targets = 1;
    const double before = run.engine().evaluate(batches).loss();
    const StepResult step = run.engine().train_step(1, batches);
    EXPECT_EQ(step.valid_tokens, 1);
    EXPECT_NEAR(step.loss(), before, 1e-6 * before);
    EXPECT_TRUE(std::isfinite(step.grad_norm) && step.grad_norm > 0);
    losses.push_back(step.loss());
    EXPECT_LT(run.engine().evaluate(batches).loss(), before);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-5 * losses[0]);
}

// Evaluation between steps drains what is pending and disturbs nothing.
TEST_P(EngineTest, EvaluationBetweenStepsChangesNoBit) {
  const Trained expected = train();
  EngineRun run(config_, {GetParam()});
  Trained trained;
  for (int step = 1; step <= kSteps; ++step) {
    const StepResult result = run.train(step);
    trained.losses.push_back(result.loss());
    trained.norms.push_back(result.grad_norm);
    run.engine().evaluate(run.batches(step));
  }
  trained.state = run.state();
  EXPECT_TRUE(trained == expected);
}

}  // namespace
}  // namespace oom::runtime
