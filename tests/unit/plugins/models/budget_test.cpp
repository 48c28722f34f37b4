// Plans made for a budget that is only just enough, executed: what the steps take is what the accountant told. Everything is left to the engine; every family
// under both strategies. OOM_TINY_MODELS names a folder with the small models.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "../../core/counting_allocator.h"
#include "../../core/runtime/engine_run.h"

namespace oom::runtime {
namespace {

using testing::counter;

constexpr int64_t kSlack = 32 << 10;  // statistics of rows and the like are left out of prices

/// Most of LibTorch's memory that lives during each stage of one rank's compute lane.
class StagePeaks {
 public:
  /// EngineOptions::before_stage.
  void enter(const StageContext& context) {
    if (!watching_ || context.stage->lane.lane != Lane::kCompute) return;
    leave();
    stage_ = context.stage;
    counter().restart();
  }
  void leave() {
    if (stage_) bytes_[stage_] = counter().peak() - before_;
    stage_ = nullptr;
  }
  void watch() {
    before_ = counter().live();
    watching_ = true;
  }
  const std::map<const Stage*, int64_t>& bytes() const { return bytes_; }

 private:
  std::atomic<bool> watching_ = false;
  int64_t before_ = 0;
  const Stage* stage_ = nullptr;
  std::map<const Stage*, int64_t> bytes_;
};

class Budget : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("OOM_TINY_MODELS");
    ASSERT_NE(folder, nullptr) << "python tests/harness/tiny_models.py FOLDER writes what it is to name";
    const auto [family, experts] = GetParam();
    config_ = write_run(folder_);
    // One rank, whose stages allocate when they run alone: what several hold at once depends on who runs when.
    overrides_ = {cat("model.path=\"", (std::filesystem::path(folder) / family).string(), "\""), cat("engine.experts=\"", experts, "\""), "engine.ranks=1", "data.sequence_length=256",
                  "train.global_batch=4", "budget.headroom=0"};
  }
  std::vector<std::string> under(int64_t gpu_bytes) const {
    std::vector<std::string> all = overrides_;
    all.push_back(cat("budget.gpu=", gpu_bytes));
    return all;
  }
  PlanAnswer answer(int64_t gpu_bytes) const {
    Session session(config_, under(gpu_bytes));
    return find_plan(session, Purpose::kPlanOnly);
  }
  void check_stages(const Program& program, const std::map<const Stage*, int64_t>& measured) const;
  /// The least budget that is not refused: a byte less is.
  int64_t least_budget() const {
    int64_t bytes = int64_t{1} << 30;
    for (PlanAnswer found = answer(bytes); found.run; found = answer(bytes - 1)) bytes = found.run->account.gpus[0].peak_bytes;
    return bytes;
  }

  oom::testing::ScratchFolder folder_;
  std::string config_;
  std::vector<std::string> overrides_;
};

// No stage takes more than it was given, whether it makes the peak or not. Attention is priced as CUDA's kernels do it.
void Budget::check_stages(const Program& program, const std::map<const Stage*, int64_t>& measured) const {
  const PlaceAccount account = account_memory(program).gpus[0];
  size_t found = 0;
  for (const LiveBytes& live : account.live) {
    const Stage& stage = program.stages[live.stage];
    const std::string& kind = program.kinds[stage.kind];
    if (kind.starts_with("attend") || kind.starts_with("mixer") || !measured.contains(&stage)) continue;
    ++found;
    EXPECT_LE(measured.at(&stage), live.bytes - account.persistent_bytes + kSlack) << stage_name(program, live.stage);
  }
  EXPECT_GT(found, 3 * program.stages.size() / 10) << "of " << program.stages.size() << " stages";
}

TEST_P(Budget, HoldsWhereAByteLessIsRefused) {
  const int64_t budget = least_budget();
  EXPECT_FALSE(answer(budget - 1).run);
  const PlanAnswer planned = answer(budget);
  ASSERT_TRUE(planned.run);
  const int64_t told = planned.run->account.gpus[0].peak_bytes;
  EXPECT_EQ(told, budget);

  StagePeaks peaks;
  EngineRun run(config_, under(budget), {.before_stage = [&](const StageContext& context) { peaks.enter(context); }});
  c10::SetCPUAllocator(&counter(), /*priority=*/255);
  run.train(1);
  const int64_t arena = run.engine().gpu_peak_bytes()[0];
  peaks.watch();
  run.train(2);
  peaks.leave();
  int64_t measured = 0;
  for (const auto& [stage, bytes] : peaks.bytes()) measured = std::max(measured, arena + bytes);
  EXPECT_LE(measured, told);
  EXPECT_GE(measured, told * 97 / 100);
  check_stages(run.engine().training_program(), peaks.bytes());
}

INSTANTIATE_TEST_SUITE_P(Families, Budget, ::testing::Combine(::testing::Values("mixtral", "qwen3_moe", "qwen3_5_moe", "gemma4"), ::testing::Values("ep", "local")),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

}  // namespace
}  // namespace oom::runtime
