// The local planner beside the accountant, the simulator and the fixed policies. Planning allocates nothing, so layers are as wide as real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <numeric>
#include <random>
#include <set>

#include "../../../../plugins/offload/planner/alternatives.h"
#include "../../../../plugins/offload/planner/measure.h"
#include "../../../../plugins/offload/planner/proposals.h"
#include "../../core/scratch_folder.h"
#include "runtime/base_plan.h"
#include "runtime/plan_candidate.h"
#include "runtime/plan_search.h"

namespace oom::offload {
namespace {

using runtime::Budgets;
using runtime::PlanCandidate;

constexpr int64_t kGiB = int64_t{1} << 30;

// Eight layers, two of which attend.
constexpr const char* kModel = R"({"model_type": "qwen3_5_moe_text", "vocab_size": 32768, "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 2,
"head_dim": 256, "full_attention_interval": 4, "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention", "linear_attention",
"linear_attention", "full_attention"], "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144, "tie_word_embeddings": false,
"rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}, "attn_output_gate": true, "rms_norm_eps": 1e-06, "hidden_act": "silu"})";

// The same at the depth of a real model.
std::string deep() {
  std::string model = kModel;
  const size_t types = model.find("\"layer_types\""), end = model.find("],", types) + 2;
  model.erase(types, end - types);
  const std::string eight = "\"num_hidden_layers\": 8";
  return model.replace(model.find(eight), eight.size(), "\"num_hidden_layers\": 48");
}

class LocalPlanner : public ::testing::Test {
 protected:
  runtime::Session& session(const std::vector<std::string>& overrides = {}, const std::string& model = kModel) {
    oom::testing::write_file(folder_ / "model/config.json", model);
    oom::testing::write_file(folder_ / "run.toml", cat("[model]\npath = \"", (folder_ / "model").string(), "\"\nweights = \"random\"\n[data]\npath = \"none\"\nsequence_length = 131072\n",
                                                       "[train]\nglobal_batch = 2\nupdates = \"overlapped\"\n[engine]\ndevice = \"cuda\"\nranks = 1\nexperts = \"local\"\n",
                                                       "[budget]\ngpu = \"80GiB\"\nhost = \"200GiB\"\n[state]\nresident = \"none\"\nresident_ordinary = \"none\"\nweights = \"cached\"\n",
                                                       "[output]\ndir = \"", (folder_ / "run").string(), "\"\n"));
    session_ = std::make_unique<runtime::Session>((folder_ / "run.toml").string(), overrides);
    return *session_;
  }

  Plan configured() {
    Plan plan = runtime::base_plan(*session_, runtime::read_machine(session_->device(), session_->ranks()), runtime::Purpose::kPlanOnly);
    plan.experts = "local";
    runtime::configure_strategies(*session_, plan);
    return plan;
  }
  const ModelDescription& model() { return session_->model().description; }

  static Budgets budgets(int64_t gpu, int64_t host) { return {.gpu_bytes = {gpu}, .headroom_bytes = 0, .host_bytes = {host}}; }

  PlanCandidate judge(const Plan& plan, const Policy& policy, const Budgets& budgets) {
    Plan changed = plan;
    changed.settings["offload"] = settings_of(policy);
    return runtime::judge_plan(*session_, changed, budgets);
  }

  Policy random_policy(const Policy& partition) {
    Policy policy = partition;
    const auto one_in = [&](int count) { return generator_() / 7 % count == 0; };
    const int regenerated = 1 + static_cast<int>(generator_() / 7 % 3);
    for (size_t layer = 0; layer < policy.layers.size(); ++layer) {
      policy.layers[layer] = {layer > 0 && !one_in(regenerated) ? Boundary::kRegenerate : one_in(3) ? Boundary::kGpu : Boundary::kHost, attends(model().layers[layer]) && one_in(2)};
    }
    const int64_t caps[] = {1, 2, 8};
    policy.regenerate_cap = caps[generator_() / 7 % 3];
    return policy;
  }

  oom::testing::ScratchFolder folder_;
  std::unique_ptr<runtime::Session> session_;
  std::minstd_rand generator_{3};
};

// Of pairs that the simulator sees at least 2 % apart.
struct Agreement {
  int pairs = 0, agreed = 0;
};
Agreement agreement(const std::vector<double>& modelled, const std::vector<double>& simulated) {
  Agreement all;
  for (size_t i = 0; i < simulated.size(); ++i) {
    for (size_t j = 0; j < simulated.size(); ++j) {
      if (simulated[i] > 0.98 * simulated[j]) continue;
      ++all.pairs;
      all.agreed += modelled[i] < modelled[j];
    }
  }
  return all;
}

// The model that is searched by against those that judge: real programs of policies that nobody chose.
TEST_F(LocalPlanner, RanksAsTheSimulatorDoes) {
  for (const int64_t length : {int64_t{131072}, int64_t{32768}, int64_t{4096}}) {
    session({cat("data.sequence_length=", length)});
    const Plan plan = configured();
    const Budgets roomy = budgets(1000 * kGiB, 1000 * kGiB);
    Policy partition = policy_of(model(), plan);
    partition.moe_chunk = 32768;
    partition.head_group = 4;
    std::vector<LayerChoices> choices;
    for (const LayerSpec& layer : model().layers) choices.push_back({.keep = attends(layer)});
    const PlanningContext context = runtime::planning_context(*session_, "local", roomy);
    const Measured measured = measure(model(), plan, partition, choices, context);
    std::vector<double> modelled, simulated;
    for (int i = 0; i < 40; ++i) {
      const Policy policy = random_policy(partition);
      const Price priced = price(measured.costs, policy);
      const PlanCandidate judged = judge(plan, policy, roomy);
      modelled.push_back(priced.seconds);
      simulated.push_back(judged.simulation.step_seconds);
      const auto gpu = static_cast<double>(judged.account.gpus[0].peak_bytes), host = static_cast<double>(judged.account.nodes[0].peak_bytes);
      EXPECT_NEAR(static_cast<double>(1000 * kGiB - measured.gpu_bytes + priced.gpu_bytes), gpu, 0.01 * gpu) << i;
      EXPECT_NEAR(static_cast<double>(1000 * kGiB - measured.host_bytes + priced.host_bytes), host, 0.001 * host) << i;
    }
    const Agreement order = agreement(modelled, simulated);
    EXPECT_GE(order.pairs, 30) << length << " tokens";
    EXPECT_GE(order.agreed, 0.95 * order.pairs) << length << " tokens, of " << order.pairs;
    // What the model would choose is as good as the best of them.
    const size_t chosen = std::min_element(modelled.begin(), modelled.end()) - modelled.begin();
    EXPECT_LE(simulated[chosen], 1.01 * *std::min_element(simulated.begin(), simulated.end())) << length << " tokens";
  }
}

TEST_F(LocalPlanner, IsAtLeastAsFastAsEveryFixedPolicyAtEveryHostBudget) {
  runtime::Session& session = this->session();
  const Plan plan = configured();
  const int64_t gpu = 20 * kGiB;
  const Budgets roomy = budgets(gpu, 1000 * kGiB);
  // What a person would write down: inputs stored, every other, every fourth; results kept or not; whole operators or slices of some size.
  std::vector<Plan> fixed;
  for (const char* inputs : {"\"all\"", "\"1+1\"", "\"3+1\"", "\"5+1\""}) {
    for (const char* results : {"[]", "\"all\""}) {
      for (const auto& [group, tokens] : std::vector<std::pair<const char*, const char*>>{{"0", "\"auto\""}, {"0", "32768"}, {"8", "32768"}, {"4", "16384"}, {"2", "16384"}, {"2", "8192"}, {"1", "8192"}}) {
        for (const char* buffers : {"3", "2"}) {
          Plan policy = plan;
          for (const auto& [key, value] : std::map<const char*, const char*>{{"keep_boundaries", inputs}, {"keep_attention", results}, {"attention_head_group", group}, {"moe_chunk", tokens},
                                                                             {"gdn_chunk", tokens}, {"sub_batch", "1"}, {"buffers", buffers}, {"regenerate_cap", "\"auto\""}}) {
            policy.settings["offload"][key] = value;
          }
          policy.settings["offload"] = settings_of(policy_of(model(), policy));
          fixed.push_back(std::move(policy));
        }
      }
    }
  }
  fixed.push_back(plan);
  struct Judged {
    double seconds;
    int64_t host_bytes;
  };
  std::vector<Judged> judged;
  for (const Plan& policy : fixed) {
    const PlanCandidate candidate = runtime::judge_plan(session, policy, roomy);
    if (candidate.fits()) judged.push_back({candidate.simulation.step_seconds, candidate.account.nodes[0].peak_bytes});
  }
  ASSERT_FALSE(judged.empty());
  int64_t least = judged.front().host_bytes, most = least;
  for (const Judged& policy : judged) {
    least = std::min(least, policy.host_bytes);
    most = std::max(most, policy.host_bytes);
  }
  double before = std::numeric_limits<double>::infinity();
  int faster = 0, mixed = 0;
  constexpr int kBudgets = 5;
  for (int i = 0; i < kBudgets; ++i) {
    const int64_t host = least + (most - least) * i / (kBudgets - 1);
    double best = std::numeric_limits<double>::infinity();
    for (const Judged& policy : judged) {
      if (policy.host_bytes <= host) best = std::min(best, policy.seconds);
    }
    const Budgets tight = budgets(gpu, host);
    const runtime::Trial found = runtime::search_plan(session, plan, tight).best;
    ASSERT_TRUE(found.fits) << host;
    const double seconds = *found.figures.step_seconds;
    EXPECT_LE(seconds, (1 + runtime::kTie) * best) << host;
    EXPECT_LE(seconds, (1 + runtime::kTie) * before) << host << ": slower with more host memory";
    before = std::min(before, seconds);
    faster += seconds < 0.99 * best;
    std::set<Boundary> places;
    const Policy policy = policy_of(model(), found.plan);
    for (int layer = 0; layer < static_cast<int>(policy.layers.size()); ++layer) {
      if (!stays(layer, static_cast<int>(policy.layers.size()), policy.buffers)) places.insert(policy.layers[layer].boundary);
    }
    mixed += places.size() >= 2;
  }
  EXPECT_GE(faster, 2) << "budgets where no fixed policy is as fast within 1 %";
  EXPECT_GE(mixed, 2) << "plans with inputs in more than one place";
}

TEST_F(LocalPlanner, LeavesWhatTheUserGave) {
  session({"offload.keep_boundaries=[0, 2, 5]", "offload.boundaries_on_gpu=[2]", "offload.keep_attention=[3]", "offload.moe_chunk=16384", "offload.buffers=2"});
  const Plan plan = configured();
  const SettingsTable given = parse_settings(offload_schema(), "keep_boundaries = [0, 2, 5]\nboundaries_on_gpu = [2]\nkeep_attention = [3]\nmoe_chunk = 16384\nbuffers = 2");
  const Budgets some = budgets(24 * kGiB, 200 * kGiB);
  const auto tables = proposals(given, model(), plan, runtime::planning_context(*session_, "local", some));
  ASSERT_FALSE(tables.empty());
  for (const auto& table : tables) {
    for (const char* key : {"keep_boundaries", "boundaries_on_gpu", "keep_attention", "moe_chunk", "buffers"}) EXPECT_EQ(table.at(key), plan.settings.at("offload").at(key)) << key;
  }
}

// What a rung of the ladder states holds, though the plan as configured has come to the same value by itself: all inputs are stored there, so its longest run is one.
TEST_F(LocalPlanner, TheSmallestPoliciesHoldOneInput) {
  session();
  const auto policies = session_->activations("offload").alternatives(model(), configured());
  ASSERT_FALSE(policies.empty());
  const Policy smallest = policy_of(model(), policies.back());
  EXPECT_TRUE(smallest.regenerates());
  EXPECT_TRUE(smallest.regenerates_in_ring());
  int one = 0;
  for (const Plan& plan : policies) {
    const Policy policy = policy_of(model(), plan);
    one += policy.regenerates() && policy.regenerate_cap == 1 && policy.layers[2].boundary == Boundary::kRegenerate;
  }
  EXPECT_EQ(one, 3) << "runs of three inputs held one at a time";
}

// Where only a ring of one leaves room, the planner finds it.
TEST_F(LocalPlanner, ProposesARingOfOneWhereNoLargerOneFits) {
  session();
  const Plan plan = configured();
  const Budgets roomy = budgets(1000 * kGiB, 1000 * kGiB);
  Policy partition = policy_of(model(), plan);
  for (int64_t Policy::*size : {&Policy::moe_chunk, &Policy::gdn_chunk}) partition.*size = 4096;
  partition.head_group = partition.sub_batch = partition.regenerate_cap = 1;
  for (size_t layer = 0; layer < partition.layers.size(); ++layer) partition.layers[layer] = {layer % 4 == 0 ? Boundary::kHost : Boundary::kRegenerate, attends(model().layers[layer])};
  const auto peak = [&](int64_t buffers) {
    partition.buffers = buffers;
    return judge(plan, partition, roomy).account.gpus[0].peak_bytes;
  };
  const int64_t of_one = peak(1), of_two = peak(2);
  ASSERT_LT(of_one, of_two);
  const Budgets tight = budgets(of_one + (of_two - of_one) / 4, 1000 * kGiB);
  Plan cut = plan;
  cut.settings["offload"] = settings_of(partition);
  const SettingsTable given = parse_settings(offload_schema(), "attention_head_group = 1\nmoe_chunk = 4096\ngdn_chunk = 4096\nsub_batch = 1\nkeep_boundaries = \"3+1\"\nkeep_attention = \"all\"\nboundaries_on_gpu = \"none\"");
  const auto tables = proposals(given, model(), cut, runtime::planning_context(*session_, "local", tight));
  ASSERT_FALSE(tables.empty());
  int fitting = 0;
  for (const auto& table : tables) {
    Plan changed = plan;
    changed.settings["offload"] = table;
    EXPECT_EQ(table.at("buffers"), "1");
    fitting += runtime::judge_plan(*session_, changed, tight).fits();
  }
  EXPECT_GE(fitting, 1);
}

// A candidate label is priced, and found to be of use or not, tens of thousands of times a search: at the depth of a real model, with costs read off its programs.
TEST_F(LocalPlanner, PricesALabelWithinMicroseconds) {
  session({}, deep());
  const Plan plan = configured();
  ASSERT_EQ(model().layers.size(), 48u);
  Policy partition = policy_of(model(), plan);
  partition.moe_chunk = 16384;
  partition.head_group = 4;
  partition.buffers = 2;
  std::vector<LayerChoices> choices;
  for (const LayerSpec& layer : model().layers) choices.push_back({.keep = attends(layer)});
  const Measured measured = measure(model(), plan, partition, choices, runtime::planning_context(*session_, "local", budgets(40 * kGiB, 400 * kGiB)));
  ASSERT_GT(measured.costs.layers[3].passes[1].backward.seconds, 0);
  ASSERT_GT(measured.gpu_bytes, 0);
  for (const int64_t cap : {8, 2, 1}) {
    SearchSpace space{.layers = choices, .buffers = 2, .regenerate_cap = cap, .gpu_bytes = measured.gpu_bytes, .host_bytes = measured.host_bytes, .shared_bytes = measured.shared_bytes, .most_labels = 400};
    int64_t priced = 0;
    const std::clock_t begin = std::clock();
    const std::vector<Found> found = search_layers(measured.costs, space, &priced);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    RecordProperty(cat("labels_cap_", cap), static_cast<int>(priced));
    RecordProperty(cat("us_cap_", cap), static_cast<int>(seconds * 1e6));
    EXPECT_FALSE(found.empty());
    EXPECT_GT(priced, 1000);
    EXPECT_LT(seconds, 20e-6 * static_cast<double>(priced)) << "cap " << cap << ", " << priced << " labels";
  }
}

}  // namespace
}  // namespace oom::offload
