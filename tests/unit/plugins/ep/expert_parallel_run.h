// A few training steps of a tiny model under the plugin, whatever the plan and the device.
#pragma once

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
using oom::testing::write_file;

inline constexpr const char* kModel = R"({"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "tie_word_embeddings": false})";
inline constexpr int64_t kLength = 16;
inline constexpr int kSteps = 3;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

/// Sleeps before every stage: mostly shortly, now and then for long. Every stage of every step has a time of its own, the same in each run.
inline EngineOptions delayed(unsigned seed) {
  EngineOptions options;
  options.before_stage = [seed](const StageContext& context) {
    const Stage& stage = *context.stage;
    std::vector<int64_t> identity{seed, context.step, stage.kind, stage.layer, stage.part, static_cast<int64_t>(stage.lane.lane), stage.lane.index};
    for (const Access& access : stage.accesses) identity.insert(identity.end(), {access.buffer, access.version});  // those of its kind in another pass have others
    std::seed_seq seeds(identity.begin(), identity.end());
    std::minstd_rand random(seeds);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8 == 0 ? random() % 1500 : random() % 150));
  };
  return options;
}

class ExpertParallelRun : public ::testing::Test {
 protected:
  ExpertParallelRun() {
    ops::configure_math();
    write_file(folder_ / "model/config.json", kModel);
    write_file(folder_ / "run.toml", cat("[model]\npath = \"", (folder_ / "model").string(), "\"\nweights = \"random\"\n[data]\npath = \"none\"\nsequence_length = ", kLength,
                                         "\n[train]\nglobal_batch = 8\nlearning_rate = 1e-3\n[engine]\ndevice = \"cpu\"\nexperts = \"ep\"\n[budget]\nhost = \"4GiB\"\n[output]\ndir = \"",
                                         (folder_ / "run").string(), "\"\n"));
  }

  PlannedRun plan(const std::vector<std::string>& overrides) {
    Session session((folder_ / "run.toml").string(), overrides);
    return make_plan(session);
  }

  static std::vector<data::Batch> batches(const Plan& plan, int64_t step) {
    std::vector<data::Batch> all;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      data::Batch batch{.sample_count = plan.sequences_per_rank(), .sequence_length = kLength};
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
    const auto transfer = comm::DeviceTransfer::make(plan.device);
    RunState state;
    state.clip_norm = session.config().train().clip_norm;
    state.hyper = [](int64_t step) { return optim::AdamWStep{.learning_rate = 1e-3, .step = step}; };
    Engine engine({session.model().description, session.model().operators, plan, session.experts(plan.experts), session.activations(plan.activations), *transfer, {}, state}, options);
    engine.clear_state();
    initialise_random(session.model().description, 1, engine.state(), engine.pools());
    engine.publish_weights();
    Outcome outcome;
    for (int step = 1; step <= kSteps; ++step) {
      const StepResult result = engine.train_step(step, batches(plan, step));
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

}  // namespace oom::runtime
