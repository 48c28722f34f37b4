/// Plans of a tiny model, made by the real plugins of the build tree.
#pragma once

#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "runtime/planner.h"

namespace oom::runtime {

inline constexpr const char* kModel = R"({"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true, "tie_word_embeddings": false})";

// Leaves the activation strategy no choice, so that what a budget allows is what this plan needs.
inline constexpr const char* kWhole =
    "[offload]\nattention_head_group = 0\nmoe_chunk = 1048576\ngdn_chunk = 1048576\nattention_batch = 1048576\nsub_batch = 1024\nkeep_attention = \"none\"\nkeep_boundaries = \"all\"\n"
    "boundaries_on_gpu = \"none\"\nregenerate_cap = 1\nbuffers = 3\n";

class Planner : public ::testing::Test {
 protected:
  Planner() {
    oom::testing::write_file(folder_ / "model/config.json", kModel);
    oom::testing::write_file(folder_ / "run.toml", cat("[model]\npath = \"", (folder_ / "model").string(), "\"\nweights = \"random\"\n",
                                         "[data]\npath = \"none\"\nsequence_length = 32\n[train]\nglobal_batch = 4\n[engine]\ndevice = \"cpu\"\nranks = 2\nexperts = \"local\"\n",
                                         "[budget]\nhost = \"8GiB\"\n", kWhole, "[output]\ndir = \"", (folder_ / "run").string(), "\"\n"));
  }

  PlanAnswer plan(std::vector<std::string> overrides, Purpose purpose = Purpose::kPlanOnly) {
    Session session((folder_ / "run.toml").string(), overrides);
    return find_plan(session, purpose);
  }
  PlannedRun fitting(std::vector<std::string> overrides) {
    PlanAnswer answer = plan(std::move(overrides));
    EXPECT_TRUE(answer.run) << answer.refusal.why;
    return answer.run ? std::move(*answer.run) : PlannedRun();
  }
  std::string written(const Plan& plan) {
    oom::testing::write_file(folder_ / "plan.toml", plan::plan_toml(plan));
    return cat("engine.plan=\"", (folder_ / "plan.toml").string(), "\"");
  }

  oom::testing::ScratchFolder folder_;
};

}  // namespace oom::runtime
