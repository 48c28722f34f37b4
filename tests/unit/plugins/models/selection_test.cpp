// Configure-then-Compare on every family: each path wins a workload, at the same costs. Short runs are simulated, on a machine that is as one calibration
// file says, which every plan is made with too: runs of models as small as these take what else the machine does. OOM_TINY_MODELS names a folder with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "../../core/scratch_folder.h"
#include "base/file.h"
#include "runtime/calibrate.h"
#include "runtime/device_costs.h"
#include "runtime/path_runs.h"
#include "runtime/planner.h"

namespace oom::runtime {
namespace {

using oom::testing::write_file;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Workload {
  const char* name;
  int64_t sequence_length, global_batch;
  const char* winner;
};

// Few tokens travel to experts; to many, experts are brought.
constexpr Workload kWorkloads[] = {{"few_tokens", 16, 2, "ep"}, {"many_tokens", 256, 8, "local"}};

class Selection : public ::testing::TestWithParam<std::tuple<const char*, Workload>> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("OOM_TINY_MODELS");
    ASSERT_NE(folder, nullptr) << "python tests/harness/tiny_models.py FOLDER writes what it is to name";
    const auto& [family, workload] = GetParam();
    // Three units deep: short runs are of one and two.
    nlohmann::json model = nlohmann::json::parse(base::read_text_file(std::filesystem::path(folder) / family / "config.json", 1 << 20));
    const nlohmann::json pattern = model.value("layer_types", nlohmann::json::array());
    for (int more = 0; more < 2; ++more) {
      for (const nlohmann::json& layer : pattern) model["layer_types"].push_back(layer);
    }
    model["num_hidden_layers"] = pattern.empty() ? 12 : model["layer_types"].size();
    write_file(folder_ / "model/config.json", model.dump());
    write_file(folder_ / "run.toml", cat("[model]\npath = \"", (folder_ / "model").string(), "\"\nweights = \"random\"\n[data]\npath = \"none\"\n",
                                         "sequence_length = ", workload.sequence_length, "\n[train]\nglobal_batch = ", workload.global_batch,
                                         "\n[engine]\ndevice = \"cpu\"\nranks = 2\ncalibration = \"", (folder_ / "costs.toml").string(), "\"\n",
                                         "[budget]\ngpu = \"4GiB\"\nhost = \"8GiB\"\n[output]\ndir = \"", (folder_ / "run").string(), "\"\n"));
    session_ = std::make_unique<Session>(config(), std::vector<std::string>{});
    const CostTable rates = analytic_costs(session_->device());
    const plan::Calibration costs{.machine = machine_of(*session_), .versions = calibrated_versions(), .device = session_->device(), .rates = rates,
                                  .profiles = {}};
    write_file(folder_ / "costs.toml", plan::calibration_toml(costs));
    for (const std::string& experts : session_->expert_candidates()) candidates_.push_back(configured(experts));
  }
  std::string config() const { return (folder_ / "run.toml").string(); }
  PlanAnswer answer(const std::vector<std::string>& overrides) const {
    Session session(config(), overrides);
    PlanAnswer found = find_plan(session, Purpose::kPlanOnly);
    if (found.run) {
      EXPECT_THAT(found.run->calibration, StartsWith((folder_ / "costs.toml").string()));
    }
    return found;
  }
  Candidate configured(const std::string& experts) const {
    const PlanAnswer found = answer({cat("engine.experts=\"", experts, "\"")});
    if (!found.run) return {.plan = {.experts = experts}, .fits = false, .why_not = found.refusal.why};
    return {.plan = found.run->plan, .fits = true, .why_not = {}, .predicted_step_seconds = found.run->simulation.step_seconds,
            .gpu_peak_bytes = peaks(*found.run), .host_peak_bytes = {}};
  }
  static std::vector<int64_t> peaks(const PlannedRun& run) {
    std::vector<int64_t> bytes;
    for (const PlaceAccount& gpu : run.account.gpus) bytes.push_back(gpu.peak_bytes);
    return bytes;
  }

  /// Short runs of the candidates, as long as the simulator says.
  class Runs final : public ShortRuns {
   public:
    explicit Runs(const Selection& test) : test_(test), model_(test.session_->model().description) {}
    int layers() const override { return static_cast<int>(model_.layers.size()); }
    int unit_layers() const override { return repeating_unit(model_); }
    Result run(size_t candidate, int layers, const LayerMix& mix) override {
      ++runs;
      const ShortPlan cut(*test_.session_, test_.candidates_.at(candidate).plan, layers, mix);
      const PlanAnswer found = test_.answer(cut.overrides());
      if (!found.run) throw BudgetError(found.refusal.why);
      EXPECT_EQ(found.run->plan.experts, test_.candidates_[candidate].plan.experts);
      return {found.run->simulation.step_seconds, peaks(*found.run)};
    }
    int runs = 0;

   private:
    const Selection& test_;
    const ModelDescription& model_;
  };

  oom::testing::ScratchFolder folder_;
  std::unique_ptr<Session> session_;
  std::vector<Candidate> candidates_;
};

TEST_P(Selection, EachPathWinsAWorkload) {
  const std::string winner = std::get<1>(GetParam()).winner;
  std::string evidence;
  ASSERT_EQ(candidates_.size(), 2u);
  Runs runs(*this);
  EXPECT_EQ(runs.layers(), 3 * runs.unit_layers());
  EXPECT_EQ(candidates_[session_->selector().select(candidates_, &runs, evidence)].plan.experts, winner) << evidence;
  EXPECT_EQ(runs.runs, 4);
  EXPECT_THAT(evidence, HasSubstr("the fastest in short runs"));
  EXPECT_EQ(candidates_[session_->selector().select(candidates_, nullptr, evidence)].plan.experts, winner) << evidence;
}

INSTANTIATE_TEST_SUITE_P(Families, Selection,
                         ::testing::Combine(::testing::Values("mixtral", "qwen3_moe", "qwen3_5_moe", "gemma4"), ::testing::ValuesIn(kWorkloads)),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param).name); });

}  // namespace
}  // namespace oom::runtime
