// The search over plans against exhaustive search, on tiny models under budgets and costs that are made up. Nothing runs: GPUs are planned for that are not here.
#include "runtime/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <filesystem>

#include "base/file.h"
#include "planner_fixture.h"
#include "plan/calibration_file.h"
#include "program/kind_observations.h"
#include "program/verifier.h"
#include "runtime/base_plan.h"
#include "runtime/calibrate.h"
#include "runtime/deferral.h"
#include "runtime/geometry.h"
#include "runtime/plan_explanation.h"
#include "runtime/residency.h"

namespace oom::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rates at which steps of a tiny model take about a second and this or that is the wall.
CostTable slow_machine() {
  CostTable costs;
  costs.gemm_flops = 3e9;
  costs.attention_flops = 3e9;
  costs.other_flops = 3e9;
  costs.hbm_bytes = 4e9;
  costs.h2d_bytes = costs.d2h_bytes = 30e6;
  costs.pcie_bytes = 50e6;
  costs.host_io_bytes = 100e6;
  costs.host_dram_bytes = 120e6;
  costs.update_parameters = 4e6;
  costs.convert_parameters = 8e6;
  costs.peer_bytes = 300e6;
  return costs;
}

const std::map<std::string, CostTable>& machines() {
  static const std::map<std::string, CostTable> all = [] {
    std::map<std::string, CostTable> tables;
    tables["updates"] = slow_machine();
    tables["updates"].update_parameters = 1e6;
    tables["pcie"] = slow_machine();
    tables["pcie"].h2d_bytes = tables["pcie"].d2h_bytes = 5e6;
    tables["compute"] = slow_machine();
    tables["compute"].gemm_flops = 1e9;
    return tables;
  }();
  return all;
}

class PlanSearch : public Planner {
 protected:
  PlanSearch() {
    std::string model = kModel;
    const std::string three = "\"num_hidden_layers\": 3";
    model.replace(model.find(three), three.size(), "\"num_hidden_layers\": 4");
    oom::testing::write_file(folder_ / "model/config.json", model);
    use(slow_machine());
  }
  void use(const CostTable& costs) {
    oom::testing::write_file(folder_ / "costs.toml", plan::calibration_toml({.machine = "none", .versions = calibrated_versions(), .device = DeviceKind::kCuda, .rates = costs, .profiles = {}}));
  }
  std::vector<std::string> gpus(std::vector<std::string> more = {}) const {
    std::vector<std::string> overrides{"engine.device=cuda", "engine.experts=ep", "budget.gpu=\"10GiB\"", "budget.host=\"100GiB\"", "budget.headroom=0", cat("engine.calibration=\"", (folder_ / "costs.toml").string(), "\"")};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return overrides;
  }

  struct Bounds {
    int64_t least = 0, most = 0;
  };
  static int64_t gpu_peak(const PlannedRun& run) { return std::max(run.account.gpus[0].peak_bytes, run.account.gpus[1].peak_bytes); }
  // What nothing and what everything on the GPUs takes.
  Bounds gpu_bounds(const std::vector<std::string>& more = {}) {
    std::vector<std::string> none = gpus(more), all = none;
    for (const char* key : {"state.resident=none", "state.resident_ordinary=none", "ep.retain=none", "ep.retain_attention=none"}) none.push_back(key);
    for (const char* key : {"state.resident=all", "state.resident_ordinary=all", "state.resident_weights=cached"}) all.push_back(key);
    return {gpu_peak(fitting(none)), gpu_peak(fitting(all))};
  }
};

/// The shortest step of all plans that fit: every set of resident layers, every way to supply weights, every number of waiting layers, every chunk.
double shortest_step(Session& session, const Budgets& budgets) {
  Plan base = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
  base.experts = session.config().engine().experts;
  configure_strategies(session, base);
  const ModelDescription& model = session.model().description;
  const std::vector<int> routed = routed_layers(model);
  std::vector<Plan> chunks = session.experts(base.experts).alternatives(model, base, /*last_resort=*/false);
  chunks.push_back(base);
  double shortest = std::numeric_limits<double>::infinity();
  for (const Plan& chunk : chunks) {
    for (unsigned set = 0; set < 1u << routed.size(); ++set) {
      for (unsigned bits = 0; bits < 12; ++bits) {
        Plan plan = chunk;
        plan.resident_layers.clear();
        for (size_t i = 0; i < routed.size(); ++i) {
          if (set & 1u << i) plan.resident_layers.push_back(routed[i]);
        }
        plan.resident_ordinary = static_cast<OrdinaryResidency>(bits / 4);
        plan.cached_weights = bits & 1;
        plan.resident_cached_weights = bits & 2;
        const int waiting = may_choose_deferral(session.config()) ? std::min<int>(static_cast<int>(deferrable_layers(plan, model).size()), static_cast<int>(model.layers.size()) - 1) : plan.deferred_layers;
        for (plan.deferred_layers = may_choose_deferral(session.config()) ? 0 : waiting; plan.deferred_layers <= waiting; ++plan.deferred_layers) {
          if (over_bytes(session.judge().account(plan), budgets) == 0) shortest = std::min(shortest, *session.judge().simulate(plan).step_seconds);
        }
      }
    }
  }
  return shortest;
}

// Within the tie that headroom is worth.
TEST_F(PlanSearch, EqualsExhaustiveSearch) {
  const Bounds bounds = gpu_bounds();
  for (const auto& [name, costs] : machines()) {
    use(costs);
    for (const char* experts : {"ep", "local"}) {
      Session session((folder_ / "run.toml").string(), gpus({cat("engine.experts=", experts)}));
      Plan base = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
      base.experts = experts;
      configure_strategies(session, base);
      const int64_t roomy_host = session.judge().account(base).host_peak_bytes[0];
      for (const int64_t gpu : {bounds.least + (bounds.most - bounds.least) / 5, (bounds.least + bounds.most) / 2, bounds.most}) {
        for (const int64_t host : {roomy_host + (int64_t{1} << 20), roomy_host - (int64_t{1} << 20)}) {
          const Budgets budgets{.gpu_bytes = {gpu, gpu}, .headroom_bytes = 0, .host_bytes = {host}};
          const double shortest = shortest_step(session, budgets);
          const SearchResult found = search_plan(session, base, budgets);
          if (shortest == std::numeric_limits<double>::infinity()) {
            EXPECT_FALSE(found.best.fits);
            continue;
          }
          ASSERT_TRUE(found.best.fits) << name << ", " << experts << ", gpu " << gpu << ", host " << host;
          EXPECT_LE(*found.best.figures.step_seconds, shortest * (1 + kTie)) << name << ", " << experts << ", gpu " << gpu << ", host " << host << ": " << describe_state(found.best.plan);
        }
      }
    }
  }
}

// With what else may take a GPU's memory: every set of layers that retain their feed-forward, attention retained or not, inputs stored, on the GPU or regenerated, results kept or not. Here the search
// is near and not exact: it takes retention by the first layers and either half by itself, so it misses a last layer retained in what a regenerated input frees (1.6 % slower at the
// least budget), and halves that pay only together (1.9 % at half of the way).
TEST_F(PlanSearch, IsNearExhaustiveSearchOverRetentionAndPolicies) {
  constexpr double kNear = 0.02;
  oom::testing::write_file(folder_ / "model/config.json", kModel);  // three layers, so that all sets are few
  const std::vector<std::string> open{"state.resident_ordinary=none", "state.weights=cached", "state.resident_weights=convert", "train.updates=overlapped",
                                      "ep.routing_chunk=1048576", "offload.keep_boundaries=auto", "offload.keep_attention=auto"};
  std::vector<std::string> least = gpus(open), most = least;
  least.insert(least.end(), {"state.resident=none", "ep.retain=none", "ep.retain_attention=none"});
  most.insert(most.end(), {"state.resident=all", "ep.retain=all", "ep.retain_attention=all", "offload.keep_boundaries=all"});
  const int64_t least_bytes = gpu_peak(fitting(least)), most_bytes = gpu_peak(fitting(most));
  for (const char* name : {"compute", "pcie"}) {
    use(machines().at(name));
    Session session((folder_ / "run.toml").string(), gpus(open));
    Plan base = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
    base.experts = "ep";
    configure_strategies(session, base);
    std::vector<Plan> policies = session.activations(base.activations).alternatives(session.model().description, base), plans;
    policies.push_back(base);
    ASSERT_GT(policies.size(), 3u);
    for (const Plan& policy : policies) {
      for (unsigned resident = 0; resident < 8; ++resident) {
        for (unsigned retained = 0; retained < 8; ++retained) {
          for (const bool attention : {false, true}) {
            Plan plan = policy;
            plan.resident_layers.clear();
            for (int layer = 0; layer < 3; ++layer) {
              if (resident & 1u << layer) plan.resident_layers.push_back(layer);
              if (retained & 1u << layer) plan.retained_feed_forward.push_back(layer);
              if (attention) plan.retained_attention.push_back(layer);
            }
            plans.push_back(std::move(plan));
          }
        }
      }
    }
    for (const int part : {0, 1, 2, 4}) {
      const int64_t gpu = least_bytes + (most_bytes - least_bytes) * part / 4;
      const Budgets budgets{.gpu_bytes = {gpu, gpu}, .headroom_bytes = 0, .host_bytes = {int64_t{100} << 30}};
      double shortest = std::numeric_limits<double>::infinity();
      for (const Plan& plan : plans) {
        if (over_bytes(session.judge().account(plan), budgets) == 0) shortest = std::min(shortest, *session.judge().simulate(plan).step_seconds);
      }
      const SearchResult found = search_plan(session, base, budgets);
      ASSERT_TRUE(found.best.fits) << name << ", gpu " << gpu;
      EXPECT_LE(*found.best.figures.step_seconds, shortest * (1 + kNear)) << name << ", part " << part << ": " << describe_state(found.best.plan);
    }
  }
}

TEST_F(PlanSearch, LargerBudgetsAreNeverSlower) {
  for (const char* experts : {"ep", "local"}) {
    const Bounds bounds = gpu_bounds({cat("engine.experts=", experts)});
    for (const auto& [name, costs] : machines()) {
      use(costs);
      Session session((folder_ / "run.toml").string(), gpus({cat("engine.experts=", experts)}));
      Plan base = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
      base.experts = experts;
      configure_strategies(session, base);
      const int64_t most_host = session.judge().account(base).host_peak_bytes[0] + (int64_t{4} << 20);
      const auto seconds = [&](int gpu, int host) {
        const int64_t gpu_bytes = bounds.least + (bounds.most - bounds.least) * gpu / 8, host_bytes = most_host - (int64_t{1} << 20) * (4 - host);
        const Trial best = search_plan(session, base, {.gpu_bytes = {gpu_bytes, gpu_bytes}, .headroom_bytes = 0, .host_bytes = {host_bytes}}).best;
        return best.fits ? *best.figures.step_seconds : std::numeric_limits<double>::infinity();
      };
      std::array<std::array<double, 9>, 5> found{};
      for (int host = 0; host <= 4; ++host) {
        for (int gpu = 0; gpu <= 8; ++gpu) {
          found[host][gpu] = seconds(gpu, host);
          EXPECT_LE(found[host][gpu], found[host][std::max(0, gpu - 1)] * (1 + kTie)) << experts << ", " << name << ", gpu " << gpu << ", host " << host;
          EXPECT_LE(found[host][gpu], found[std::max(0, host - 1)][gpu] * (1 + kTie)) << experts << ", " << name << ", gpu " << gpu << ", host " << host;
        }
      }
    }
  }
}

// What the chosen plan takes to the byte is enough for it; a byte less is another plan or none.
TEST_F(PlanSearch, BudgetsHoldToTheByte) {
  const Bounds bounds = gpu_bounds();
  const auto with = [&](int64_t bytes) { return plan(gpus({cat("budget.gpu=", bytes)})); };
  const PlannedRun first = std::move(*with((bounds.least + bounds.most) / 2).run);
  EXPECT_FALSE(first.plan.resident_layers.empty());
  const PlanAnswer exact = with(gpu_peak(first));
  ASSERT_TRUE(exact.run);
  EXPECT_LE(exact.run->simulation.step_seconds, first.simulation.step_seconds * (1 + kTie));
  const PlanAnswer less = with(gpu_peak(first) - 1);
  ASSERT_TRUE(less.run);
  EXPECT_LT(gpu_peak(*less.run), gpu_peak(first));
  EXPECT_NE(describe_difference(less.run->plan, first.plan), "");
  EXPECT_FALSE(with(bounds.least - 1).run);
}

TEST_F(PlanSearch, WhatIsStatedStays) {
  const PlannedRun run = fitting(gpus({"state.resident=[1, 3]", "state.resident_ordinary=none", "state.weights=convert", "state.resident_weights=cached", "train.updates=overlapped", "ep.routing_chunk=17"}));
  EXPECT_EQ(run.plan.resident_layers, (std::vector<int>{1, 3}));
  EXPECT_EQ(run.plan.resident_ordinary, OrdinaryResidency::kNone);
  EXPECT_FALSE(run.plan.cached_weights);
  EXPECT_TRUE(run.plan.resident_cached_weights);
  EXPECT_EQ(run.plan.deferred_layers, 0);
  EXPECT_EQ(run.plan.settings.at("ep").at("routing_chunk"), "17");
}

// Where compute is the wall, layers that are not replayed are the shorter step; memory for them is memory that resident layers do not have.
TEST_F(PlanSearch, RetainsWhatPays) {
  use(machines().at("compute"));
  const std::vector<std::string> stated{"state.resident=none", "state.resident_ordinary=none"};
  std::vector<std::string> none = stated, open = stated;
  none.insert(none.end(), {"ep.retain=none", "ep.retain_attention=none"});
  const PlannedRun replayed = fitting(gpus(none)), retained = fitting(gpus(open));
  EXPECT_TRUE(replayed.plan.retained_feed_forward.empty());
  EXPECT_FALSE(retained.plan.retained_feed_forward.empty() && retained.plan.retained_attention.empty());
  EXPECT_LT(retained.simulation.step_seconds, replayed.simulation.step_seconds);
  // Without room for them nothing is retained.
  open.push_back(cat("budget.gpu=", gpu_peak(replayed)));
  const PlannedRun tight = fitting(gpus(open));
  EXPECT_LE(gpu_peak(tight), gpu_peak(replayed));
}

// A retained layer saves the compute lane its replay: all of it where nothing waits for the host, nothing where the step waits for layers to stream. That is no matter of these rates: replay is
// work of the compute lane and of the exchange alone, a streamed layer's weights come in for its backward in any case, so that a layer more that is resident only takes away what hid the replay.
// Retention is worth less with more residents in another sense, in which the search weighs it: by the byte, beside layers that would take its memory (RetainsWhatPays).
TEST_F(PlanSearch, ARetainedLayerIsWorthItsReplayWhereNothingStreams) {
  use(machines().at("pcie"));
  const auto step = [&](const char* resident, const char* retain) {
    return fitting(gpus({cat("state.resident=", resident), cat("ep.retain=", retain), "state.resident_ordinary=all", "ep.retain_attention=none", "train.updates=overlapped"}));
  };
  const auto worth = [&](const char* resident) { return step(resident, "none").simulation.step_seconds - step(resident, "[1]").simulation.step_seconds; };
  const PlannedRun replayed = step("all", "none");
  double replay = 0;
  for (size_t id = 0; id < replayed.program.stages.size(); ++id) {
    const Stage& stage = replayed.program.stages[id];
    if (stage.layer == 1 && stage.lane == LaneId{Lane::kCompute, 0}) replay += replayed.simulation.stages[id].seconds();
  }
  const double all = worth("all"), none = worth("none");
  EXPECT_GT(all, 0);
  EXPECT_LT(all, replay);
  EXPECT_LT(none, 0.5 * all);
}

// Enough tokens for chunks: where the whole does not fit, one that does and is as fast as the largest of them.
TEST_F(PlanSearch, RoutingChunksFollowTheBudget) {
  const std::vector<std::string> workload{"data.sequence_length=131072", "train.global_batch=2", "state.resident=none", "state.resident_ordinary=none", "ep.retain=none", "ep.retain_attention=none"};
  const auto plan_under = [&](int64_t bytes) {
    std::vector<std::string> all = workload;
    all.push_back(cat("budget.gpu=", bytes));
    return plan(gpus(all));
  };
  const auto chunk_under = [&](int64_t bytes) {
    const PlanAnswer answer = plan_under(bytes);
    return answer.run ? std::stoll(answer.run->plan.settings.at("ep").at("routing_chunk")) : 0;
  };
  const auto stated = [&](const char* chunk) {
    std::vector<std::string> all = workload;
    all.push_back(cat("ep.routing_chunk=", chunk));
    return fitting(gpus(all));
  };
  const int64_t whole = gpu_peak(stated("131072")), third = gpu_peak(stated("32768")), small = gpu_peak(stated("4096"));
  ASSERT_GT(whole, third);
  ASSERT_GT(third, small);
  EXPECT_LT(chunk_under(whole - 1), 131072);
  const PlanAnswer at_third = plan_under(third);
  ASSERT_TRUE(at_third.run);
  EXPECT_LE(at_third.run->simulation.step_seconds, stated("32768").simulation.step_seconds * (1 + kTie));
  EXPECT_LT(chunk_under(third - 1), 32768);
  EXPECT_EQ(chunk_under(small - 1) % 1024, 0);
}

TEST_F(PlanSearch, SaysWhatLostAndWhatMoreMemoryWouldBuy) {
  Session session((folder_ / "run.toml").string(), gpus({cat("budget.gpu=", (gpu_bounds().least + gpu_bounds().most) / 2)}));
  const PlanAnswer answer = find_plan(session, Purpose::kPlanOnly);
  ASSERT_TRUE(answer.run);
  const std::vector<RunnerUp> lost = runners_up(*answer.run);
  ASSERT_FALSE(lost.empty());
  for (const RunnerUp& each : lost) {
    EXPECT_NE(each.difference, "");
    EXPECT_NE(each.why, "");
    EXPECT_GE(each.figures.step_seconds.value_or(1e9), answer.run->simulation.step_seconds * (1 - kTie));
  }
  const std::vector<BudgetGain> gains = budget_gains(session, *answer.run);
  ASSERT_EQ(gains.size(), 2u);
  // A GiB holds the whole of the model.
  EXPECT_LT(gains[0].step_seconds, answer.run->simulation.step_seconds);
  EXPECT_THAT(gains[0].difference, HasSubstr("state.resident"));
  EXPECT_THAT(explain(session, *answer.run), HasSubstr("one more GiB of each GPU"));
  // Without planning again: what was tried and lacks less than that.
  const int64_t work = session.judge().emitted_stages();
  const std::vector<BudgetGain> known = known_gains(*answer.run);
  EXPECT_EQ(session.judge().emitted_stages(), work);
  Budgets larger{.gpu_bytes = answer.run->gpu_budget_bytes, .headroom_bytes = answer.run->headroom_bytes, .host_bytes = answer.run->host_budget_bytes};
  for (int64_t& bytes : larger.gpu_bytes) bytes += int64_t{1} << 30;
  const auto would_fit = [&](const Trial& trial) { return !trial.fits && over_bytes(trial.figures, larger) == 0; };
  EXPECT_EQ(std::any_of(known.begin(), known.end(), [&](const BudgetGain& gain) { return gain.budget == gains[0].budget && gain.difference != ""; }),
            std::any_of(answer.run->others.begin(), answer.run->others.end(), would_fit));
}

// Qwen3-30B-A3B at its full depth, on two GPUs, where it fits and where it does not: ten seconds of the processor under ep, a minute under local, which searches policies too.
TEST_F(PlanSearch, FullDepthTakesSeconds) {
  oom::testing::write_file(folder_ / "model/config.json", R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "tie_word_embeddings": false})");
  std::string text = base::read_text_file(folder_ / "run.toml", 1 << 20);
  text.erase(text.find("[offload]"), std::string(kWhole).size());
  oom::testing::write_file(folder_ / "run.toml", text);
  for (const char* experts : {"ep", "local"}) {
    for (const int gib : {80, 12, 4}) {
      const std::clock_t begin = std::clock();
      const PlanAnswer answer = plan({"engine.device=cuda", cat("engine.experts=", experts), "data.sequence_length=4096", "train.global_batch=16", cat("budget.gpu=\"", gib, "GiB\""),
                                      "budget.host=\"480GiB\""});
      EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, std::string(experts) == "ep" ? 10 : 60) << experts << " under " << gib << " GiB";
      if (gib == 80 || gib == 4) {
        EXPECT_EQ(answer.run.has_value(), gib == 80) << experts << " under " << gib << " GiB";
      }
    }
  }
}

// Likewise long sequences, many of them, of which as configured nothing fits: thousands of chunks of tokens in a step.
TEST_F(PlanSearch, LongSequencesTakeSeconds) {
  struct Row {
    const char* model;
    int64_t sequences, length;
    int gib;
  };
  const Row rows[] = {{"qwen3-30b-a3b", 32, 32 << 10, 60}, {"qwen3.5-122b-a10b", 8, 128 << 10, 80}, {"qwen3.5-122b-a10b", 4, 512 << 10, 140}};
  std::string text = base::read_text_file(folder_ / "run.toml", 1 << 20);
  text.erase(text.find("[offload]"), std::string(kWhole).size());
  oom::testing::write_file(folder_ / "run.toml", text);
  for (const Row& row : rows) {
    const std::string model = (std::filesystem::current_path() / "configs/models" / row.model).string();
    const std::clock_t begin = std::clock();
    const PlanAnswer answer = plan({"engine.device=cuda", "engine.experts=ep", cat("model.path=\"", model, "\""), "model.yarn_factor=2", cat("data.sequence_length=", row.length),
                                    cat("train.global_batch=", row.sequences), cat("budget.gpu=\"", row.gib, "GiB\""), "budget.host=\"2000GiB\""});
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10) << row.model << ", " << row.sequences << " x " << row.length;
    EXPECT_TRUE(answer.run) << row.model << ", " << row.sequences << " x " << row.length;
  }
}

// What a search judges plans by: runs of alike chunks as one stage. Peaks are those of the program that is run, to the byte, and times nearly.
TEST_F(PlanSearch, SketchesTakeWhatTheProgramTakes) {
  for (const auto& [name, costs] : machines()) {
    use(costs);
    for (const char* retain : {"none", "all"}) {
      for (const char* rows : {"auto", "3000"}) {
        Session session((folder_ / "run.toml").string(), gpus({"data.sequence_length=131072", "train.global_batch=2", "ep.routing_chunk=2000", cat("ep.retain=", retain), cat("ep.receive_rows=", rows)}));
        Plan plan = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
        plan.experts = "ep";
        configure_strategies(session, plan);
        const AccountedProgram whole = emit_plan(session, plan, ProgramUse::kJudge), sketch = emit_plan(session, plan, ProgramUse::kSketch);
        const std::string which = cat(name, ", retain ", retain, ", receive_rows ", rows);
        EXPECT_LT(sketch.program.stages.size(), whole.program.stages.size() / 2) << which;
        EXPECT_THAT(program::verify(sketch.program), IsEmpty()) << which;
        for (int rank = 0; rank < plan.ranks; ++rank) EXPECT_EQ(sketch.account.gpus[rank].peak_bytes, whole.account.gpus[rank].peak_bytes) << which;
        EXPECT_EQ(sketch.account.nodes[0].peak_bytes, whole.account.nodes[0].peak_bytes) << which;
        const double exact = simulate_plan(plan, whole.program, session.costs("ep")).step_seconds;
        EXPECT_NEAR(simulate_plan(plan, sketch.program, session.costs("ep")).step_seconds, exact, 0.01 * exact) << which;
      }
    }
  }
}

// A choice that another strategy would make otherwise is told by its own keys.
// On the CPU device, where nothing is calibrated: costs come of one run of the plan as configured, whose stages took three times what the device's rates say.
class ShortRunCosts : public Planner {
 protected:
  static plan::Calibration costs_of(const std::string& config, const std::string& experts) {
    Session session(config, {cat("engine.experts=", experts)});
    const PlanAnswer configured = find_plan(session, Purpose::kPlanOnly);
    const Program& program = configured.run->program;
    const CostTable rates = session.costs(experts);
    std::vector<StageTime> times;
    for (const Stage& stage : program.stages) {
      // Experts are priced as if every row came to one rank, and routers' few operations take many times what they say.
      const std::string& kind = program.kinds[stage.kind];
      const double ratio = kind.starts_with("experts") ? 0.5 : kind.starts_with("router") ? 20 : 3;
      times.push_back({.start = 0, .end = ratio * solo_seconds(program, stage, rates)});
    }
    program::KindObservations seen;
    seen.add(program, std::vector<std::vector<StageTime>>{times}, rates);
    plan::Calibration calibration{.machine = machine_of(session), .versions = calibrated_versions(), .device = DeviceKind::kCpu, .rates = rates, .profiles = {}};
    calibration.put({.geometry = geometry_of(session.model().description), .experts = experts, .compute = ElementType::kBfloat16, .kinds = seen.fits(), .analytic_factor = seen.analytic_factor()});
    return calibration;
  }
  std::string config() const { return (folder_ / "run.toml").string(); }
};

TEST_F(ShortRunCosts, APlanIsNotFasterForItsKindsNotBeingMeasured) {
  for (const char* experts : {"ep", "local"}) {
    const plan::Calibration calibration = costs_of(config(), experts);
    const auto seconds = [&](std::vector<std::string> overrides, bool measured) {
      overrides.push_back(cat("engine.experts=", experts));
      Session session(config(), overrides);
      session.calibrate_with(calibration, "a short run");
      const PlanAnswer answer = find_plan(session, Purpose::kPlanOnly);
      EXPECT_EQ(program::analytic_kinds(answer.run->program, session.costs(experts)).empty(), measured) << experts;
      return answer.run->simulation.step_seconds;
    };
    const double uncut = seconds({}, true);
    EXPECT_GE(seconds({"offload.attention_head_group=1"}, false), uncut) << experts;
    EXPECT_GE(seconds({"offload.attention_head_group=1", "offload.keep_attention=all", "offload.sub_batch=1"}, false), uncut) << experts;
  }
}

TEST_F(ShortRunCosts, WhereAllFitsSlicesStayAsConfigured) {
  // The file leaves the activation strategy no choice; this one leaves it all.
  std::string text = base::read_text_file(config(), 1 << 20);
  text.replace(text.find(kWhole), std::string(kWhole).size(), "");
  oom::testing::write_file(folder_ / "open.toml", text);
  const std::string open = (folder_ / "open.toml").string();
  for (const char* experts : {"ep", "local"}) {
    Session session(open, {cat("engine.experts=", experts)});
    session.calibrate_with(costs_of(config(), experts), "a short run");
    session.doubt_costs(0.1);
    Plan configured = base_plan(session, read_machine(session.device(), session.ranks()), Purpose::kPlanOnly);
    configured.experts = experts;
    configure_strategies(session, configured);
    EXPECT_EQ(find_plan(session, Purpose::kPlanOnly).run->plan.settings, configured.settings) << experts;
  }
}

TEST_F(PlanSearch, DifferencesAreNamedByKey) {
  Plan one, other;
  EXPECT_THAT(describe_difference(one, other), IsEmpty());
  one.resident_layers = {0, 1};
  one.deferred_layers = 3;
  one.settings["ep"] = {{"routing_chunk", "64"}};
  other.settings["ep"] = {{"routing_chunk", "128"}};
  EXPECT_EQ(describe_difference(one, other), "state.resident 2, deferred_layers 3, ep.routing_chunk 64");
  other = one;
  other.resident_layers = {0, 2};
  EXPECT_EQ(describe_difference(one, other), "state.resident [0, 1]");
}

}  // namespace
}  // namespace oom::runtime
