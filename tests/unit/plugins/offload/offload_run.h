// Whole steps of tiny models under the plugin, in this process: what a policy changes and what it must not change.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "../../core/scratch_folder.h"
#include "oom/ops/linear.h"
#include "runtime/engine.h"
#include "runtime/model_files.h"
#include "runtime/planner.h"

namespace oom::offload {

using Overrides = std::vector<std::string>;

inline constexpr int64_t kVocabulary = 160;
inline constexpr int64_t kBatch = 6;
inline constexpr int kSteps = 3;

/// Tokens of a sequence. The delta rule is cut at multiples of 64, so its family gets sequences longer than two of these.
inline int64_t length_of(const std::string& family) { return family == "qwen3_5_moe" ? 130 : 24; }
inline int64_t batch_of(const std::string& family) { return family == "qwen3_5_moe" ? 4 : kBatch; }

/// config.json of tiny models with as many layers as sets of layers need. Of Qwen3.5-MoE every token takes every expert: over its longer sequences, some token
/// would be so near a tie of two experts that the rounding of a sum in another order turned its choice.
inline const std::map<std::string, std::string>& models() {
  static const std::map<std::string, std::string> all{
      {"qwen3_moe", R"({"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
"num_hidden_layers": 9, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": false, "initializer_range": 0.08})"},
      {"qwen3_5_moe", R"({"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 5,
"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
"linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "hidden_act": "silu",
"max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0],
"mrope_interleaved": true}, "attention_bias": false, "attn_output_gate": true, "tie_word_embeddings": false, "initializer_range": 0.04})"},
      {"mixtral", R"({"model_type": "mixtral", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 7,
"num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false, "initializer_range": 0.08})"},
      {"gemma4", R"({"architectures": ["Gemma4ForCausalLM"],
"model_type": "gemma4_text", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_global_key_value_heads": 1, "global_head_dim": 32, "attention_k_eq_v": true, "sliding_window": 7, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06, "max_position_embeddings": 256, "final_logit_softcapping": 30.0, "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
"full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}},
"enable_moe_block": true, "num_experts": 8, "top_k_experts": 2, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 160, "num_kv_shared_layers": 0, "use_double_wide_mlp": false, "use_bidirectional_attention": null, "tie_word_embeddings": true, "pad_token_id": 0, "initializer_range": 0.3})"}};
  return all;
}

/// Nothing cut, nothing kept, nothing regenerated: what every case departs from and is compared with. Stated, because what is left open is planned, on the CPU device too.
inline constexpr const char* kUncut =
    "[offload]\nattention_head_group = 0\nattention_chunk = 1048576\ngdn_chunk = 1048576\nmoe_chunk = 1048576\nattention_batch = 1048576\nsub_batch = 1024\nkeep_attention = \"none\"\n"
    "keep_boundaries = \"all\"\nboundaries_on_gpu = \"none\"\nregenerate_cap = 1024\nbuffers = 3\n[ep]\nrouting_chunk = 1048576\n";

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

class OffloadRun : public ::testing::Test {
 protected:
  OffloadRun() { ops::configure_math(); }

  std::string write_run(const std::string& family) {
    const auto folder = folder_ / family;
    oom::testing::write_file(folder / "model/config.json", models().at(family));
    oom::testing::write_file(folder / "run.toml", cat("[model]\npath = \"", (folder / "model").string(), "\"\nweights = \"random\"\n[data]\npath = \"none\"\nsequence_length = ", length_of(family),
                                                      "\n[train]\nglobal_batch = ", batch_of(family), "\nupdates = \"overlapped\"\nrouter_aux_loss = ", family == "gemma4" ? "0.0" : "0.05", "\n[precision]\ncompute = \"fp32\"\n",
                                                      "[engine]\ndevice = \"cpu\"\nranks = 1\nexperts = \"local\"\n[budget]\nhost = \"8GiB\"\n", kUncut, "[output]\ndir = \"", (folder / "run").string(), "\"\n"));
    return (folder / "run.toml").string();
  }

  runtime::PlannedRun plan(const std::string& family, const Overrides& overrides) {
    runtime::Session session(write_run(family), overrides);
    return runtime::make_plan(session, runtime::Purpose::kPlanOnly);
  }

  // Documents of isolated runs: a few an irregular sequence.
  static data::Batch batch(const Plan& plan, int rank, int64_t step) {
    const int64_t length = plan.workload.sequence_length;
    data::Batch batch{.sample_count = plan.sequences_per_rank(), .sequence_length = length};
    int32_t position = 0;
    for (int64_t t = 0; t < plan.tokens_per_rank(); ++t) {
      const int64_t global = rank * plan.tokens_per_rank() + t;
      std::minstd_rand generator(static_cast<unsigned>(1000 * step + global + 1));
      generator.discard(3);
      batch.inputs.push_back(static_cast<int32_t>(generator() % kVocabulary));
      batch.targets.push_back(static_cast<int32_t>(generator() % kVocabulary));
      const bool starts = t % length == 0 || (plan.workload.isolated_documents && generator() % 9 == 0);
      position = starts ? 0 : position + 1;
      batch.positions.push_back(position);
      if (t % length == 0) batch.document_begins.emplace_back();
      if (starts) batch.document_begins.back().push_back(static_cast<int32_t>(t % length));
      if (t % length == length - 1) batch.document_begins.back().push_back(static_cast<int32_t>(length));
    }
    batch.valid_targets = plan.tokens_per_rank();
    return batch;
  }

  /// Layers of a plan that retain, where no strategy's table says so.
  struct Retained {
    std::vector<int> feed_forward, attention;
  };
  Outcome train(const std::string& family, const Overrides& overrides, const Retained& retained = {}, int steps = kSteps) {
    runtime::Session session(write_run(family), overrides);
    runtime::PlannedRun planned = runtime::make_plan(session, runtime::Purpose::kPlanOnly);
    if (!retained.feed_forward.empty()) planned.plan.retained_feed_forward = retained.feed_forward;
    if (!retained.attention.empty()) planned.plan.retained_attention = retained.attention;
    const auto transfer = comm::DeviceTransfer::make(planned.plan.device);
    runtime::RunState run;
    run.hyper = [](int64_t step) { return optim::AdamWStep{.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .step = step}; };
    const runtime::LoadedModel& model = session.model();
    runtime::Engine engine({model.description, model.operators, planned.plan, session.experts(planned.plan.experts), session.activations(planned.plan.activations), *transfer, {}, run},
                           {});
    engine.clear_state();
    initialise_random(model.description, 7, engine.state(), engine.pools());
    engine.publish_weights();
    engine.set_next_step(1);
    Outcome outcome;
    for (int step = 1; step <= steps; ++step) {
      std::vector<data::Batch> batches;
      for (int rank = 0; rank < planned.plan.ranks; ++rank) batches.push_back(batch(planned.plan, rank, step));
      const runtime::StepResult result = engine.train_step(step, batches);
      outcome.losses.push_back(result.loss());
      outcome.norms.push_back(result.grad_norm);
    }
    engine.drain();
    for (int p = 0; p < static_cast<int>(model.description.parameters.size()); ++p) {
      std::vector<float> values(static_cast<size_t>(model.description.parameters[p].elements()));
      engine.state().read(p, optim::StatePart::kMaster, 0, values);
      outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
    }
    return outcome;
  }

  /// What other runs are compared with, trained once.
  const Outcome& trained_once(const std::string& family, const Overrides& overrides, int steps = kSteps) {
    static std::map<std::tuple<std::string, Overrides, int>, Outcome> known;
    const auto [found, fresh] = known.try_emplace({family, overrides, steps});
    if (fresh) found->second = train(family, overrides, {}, steps);
    return found->second;
  }

  static void expect_same(const Outcome& outcome, const Outcome& expected) {
    EXPECT_EQ(outcome.losses, expected.losses);
    EXPECT_EQ(outcome.norms, expected.norms);
    EXPECT_TRUE(outcome.weights == expected.weights);
  }
  static void expect_close(const Outcome& outcome, const Outcome& expected) {
    ASSERT_EQ(outcome.losses.size(), expected.losses.size());
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(outcome.losses[step], expected.losses[step], 1e-6 * expected.losses[step]) << "step " << step + 1;
      EXPECT_NEAR(outcome.norms[step], expected.norms[step], 2e-5 * expected.norms[step]) << "step " << step + 1;
    }
    ASSERT_EQ(outcome.weights.size(), expected.weights.size());
    double squares = 0;
    for (size_t i = 0; i < outcome.weights.size(); ++i) {
      const double difference = static_cast<double>(outcome.weights[i]) - expected.weights[i];
      squares += difference * difference;
    }
    EXPECT_LT(std::sqrt(squares / static_cast<double>(outcome.weights.size())), 2e-6);
  }

  oom::testing::ScratchFolder folder_;
};

}  // namespace oom::offload
