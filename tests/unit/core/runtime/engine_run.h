/// A whole engine in a test: the tiny model with random weights, the real plugins of the build tree, batches of random tokens.
#pragma once

#include <random>
#include <vector>

#include "../scratch_folder.h"
#include "comm/device_transfer.h"
#include "oom/ops/linear.h"
#include "runtime/engine.h"
#include "runtime/model_files.h"
#include "runtime/planner.h"

namespace oom::runtime {

inline constexpr int64_t kVocabulary = 160;

/// Writes the model and the configuration of a run, to be varied by overrides.
inline std::string write_run(const oom::testing::ScratchFolder& folder, int64_t vocabulary = kVocabulary, bool tied = false, int top_k = 4) {
  oom::testing::write_file(folder / "model/config.json",
                           cat(R"({"model_type": "qwen3_moe", "vocab_size": )", vocabulary, R"(, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 16, "num_experts_per_tok": )", top_k, R"(, "norm_topk_prob": true, "tie_word_embeddings": )", tied ? "true" : "false", R"(, "initializer_range": 0.08})"));
  oom::testing::write_file(folder / "run.toml", cat("[model]\npath = \"", (folder / "model").string(), "\"\nweights = \"random\"\n",
                                                    "[data]\npath = \"none\"\nsequence_length = 16\n[train]\nglobal_batch = 4\n[precision]\ncompute = \"fp32\"\n",
                                                    "[engine]\ndevice = \"cpu\"\nranks = 2\nexperts = \"local\"\n[budget]\nhost = \"8GiB\"\n[output]\ndir = \"",
                                                    (folder / "run").string(), "\"\n"));
  return (folder / "run.toml").string();
}

class EngineRun {
 public:
  /// `transfer` stands for the device's own. Purpose::kPlanOnly: as planned, whatever this machine has.
  EngineRun(const std::string& config, const std::vector<std::string>& overrides, EngineOptions options = {}, std::unique_ptr<comm::DeviceTransfer> transfer = nullptr,
            Purpose purpose = Purpose::kTrain)
      : session_(config, overrides), planned_(make_plan(session_, purpose)), transfer_(transfer ? std::move(transfer) : comm::DeviceTransfer::make(planned_.plan.device)) {
    ops::configure_math();
    const config::Train train = session_.config().train();
    run_.clip_norm = train.clip_norm;
    const double weight_decay = session_.config().table("train").is_given("weight_decay") ? train.weight_decay : 0.1;
    run_.hyper = [weight_decay](int64_t step) {
      return optim::AdamWStep{.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = static_cast<float>(weight_decay), .step = step};
    };
    engine_ = std::make_unique<Engine>(ProgramSources{model(), session_.model().operators, planned_.plan, session_.experts(planned_.plan.experts),
                                                      session_.activations(planned_.plan.activations), *transfer_, {}, run_},
                                       std::move(options));
    engine_->clear_state();
    initialise_random(model(), 7, engine_->state(), engine_->pools());
    engine_->publish_weights();
    engine_->set_next_step(1);
  }

  Engine& engine() { return *engine_; }
  const ModelDescription& model() { return session_.model().description; }
  const Plan& plan() const { return planned_.plan; }
  const PlannedRun& planned() const { return planned_; }

  /// The batch of a step: the same tokens whatever the ranks.
  std::vector<data::Batch> batches(int64_t step) const {
    std::minstd_rand generator(static_cast<unsigned>(100 + step));
    std::vector<data::Batch> all;
    for (int rank = 0; rank < plan().ranks; ++rank) {
      data::Batch batch{.sample_count = plan().sequences_per_rank(), .sequence_length = plan().workload.sequence_length};
      for (int64_t t = 0; t < plan().tokens_per_rank(); ++t) {
        batch.inputs.push_back(static_cast<int32_t>(generator() % kVocabulary));
        batch.targets.push_back(static_cast<int32_t>(generator() % kVocabulary));
        batch.positions.push_back(static_cast<int32_t>(t % batch.sequence_length));
      }
      batch.valid_targets = plan().tokens_per_rank();
      all.push_back(std::move(batch));
    }
    return all;
  }
  StepResult train(int64_t step) { return engine_->train_step(step, batches(step)); }

  /// Masters and moments of every parameter, one after another; drains first.
  std::vector<float> state() {
    engine_->drain();
    return state_as_it_is();
  }
  /// The same without draining: after a failure.
  std::vector<float> state_as_it_is() {
    std::vector<float> all;
    for (int p = 0; p < static_cast<int>(model().parameters.size()); ++p) {
      for (const optim::StatePart part : {optim::StatePart::kMaster, optim::StatePart::kFirstMoment, optim::StatePart::kSecondMoment}) {
        std::vector<float> values(static_cast<size_t>(model().parameters[p].elements()));
        engine_->state().read(p, part, 0, values);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }

 private:
  Session session_;
  PlannedRun planned_;
  RunState run_;
  std::unique_ptr<comm::DeviceTransfer> transfer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace oom::runtime
