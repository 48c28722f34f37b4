// Whole training steps with the plugin: order of completion must not show in any bit, and memory that nobody wrote must reach nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "../../core/scratch_folder.h"
#include "oom/ops/linear.h"
#include "runtime/engine.h"
#include "runtime/model_files.h"
#include "runtime/planner.h"

namespace oom::runtime {
namespace {

using oom::testing::write_file;

constexpr const char* kModel = R"({"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "tie_word_embeddings": false})";
constexpr int64_t kLength = 16;
constexpr int kSteps = 3;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

class ExpertParallelRun : public ::testing::Test {
 protected:
  ExpertParallelRun() {
    ops::configure_math();
    write_file(folder_ / "model/config.json", kModel);
    write_file(folder_ / "run.toml", cat("[model]\npath = \"", (folder_ / "model").string(), "\"\nweights = \"random\"\n[data]\npath = \"none\"\nsequence_length = ", kLength,
                                         "\n[train]\nglobal_batch = 8\nlearning_rate = 1e-3\n[engine]\ndevice = \"cpu\"\nexperts = \"ep\"\n[budget]\nhost = \"4GiB\"\n[output]\ndir = \"",
                                         (folder_ / "run").string(), "\"\n"));
  }

  static std::vector<data::Batch> batches(int ranks, int64_t step) {
    std::vector<data::Batch> all;
    for (int rank = 0; rank < ranks; ++rank) {
      data::Batch batch{.sample_count = 8 / ranks, .sequence_length = kLength};
      for (int64_t i = 0; i < batch.sample_count * kLength; ++i) {
        std::mt19937 random(static_cast<unsigned>(step * 1000 + rank * batch.sample_count * kLength + i));
        batch.inputs.push_back(static_cast<int32_t>(random() % 160));
        batch.targets.push_back(static_cast<int32_t>(random() % 160));
        batch.positions.push_back(static_cast<int32_t>(i % kLength));
        ++batch.valid_targets;
      }
      all.push_back(std::move(batch));
    }
    return all;
  }

  Outcome train(const std::vector<std::string>& overrides, const EngineOptions& options = {}) {
    Session session((folder_ / "run.toml").string(), overrides);
    PlanAnswer answer = find_plan(session, Purpose::kTrain);
    EXPECT_TRUE(answer.run) << answer.refusal.why;
    const Plan& plan = answer.run->plan;
    const auto transfer = comm::DeviceTransfer::make(DeviceKind::kCpu);
    RunState state;
    state.clip_norm = session.config().train().clip_norm;
    state.hyper = [](int64_t step) { return optim::AdamWStep{.learning_rate = 1e-3, .step = step}; };
    Engine engine({session.model().description, session.model().operators, plan, session.experts(plan.experts), session.activations(plan.activations), *transfer, {}, state}, options);
    engine.clear_state();
    initialise_random(session.model().description, 1, engine.state(), engine.pools());
    engine.publish_weights();
    Outcome outcome;
    for (int step = 1; step <= kSteps; ++step) {
      const StepResult result = engine.train_step(step, batches(plan.ranks, step));
      outcome.losses.push_back(result.loss());
      outcome.norms.push_back(result.grad_norm);
    }
    engine.drain();
    const ModelDescription& model = session.model().description;
    for (int p = 0; p < static_cast<int>(model.parameters.size()); ++p) {
      outcome.weights.emplace_back(model.parameters[p].elements());
      engine.state().read(p, optim::StatePart::kMaster, 0, outcome.weights.back());
    }
    return outcome;
  }

  oom::testing::ScratchFolder folder_;
};

EngineOptions delayed(unsigned seed) {
  EngineOptions options;
  options.before_stage = [seed](const StageContext& context) {
    const unsigned stage = static_cast<unsigned>(context.stage->lane.index * 31 + static_cast<int>(context.stage->lane.lane) * 7 + context.stage->layer * 131 + context.stage->part * 17);
    std::mt19937 random(seed * 7919 + stage + static_cast<unsigned>(context.step) * 101);
    if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
  };
  return options;
}

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
