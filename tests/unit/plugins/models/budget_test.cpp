// Plans made for a budget that is only just enough, executed: what the steps take is what the accountant told. Everything is left to the engine; every family
// under both strategies. OOM_TINY_MODELS names a folder with the small models.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "../../core/counting_allocator.h"
#include "../../core/runtime/engine_run.h"

namespace oom::runtime {
namespace {

using testing::counter;

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

TEST_P(Budget, HoldsWhereAByteLessIsRefused) {
  const int64_t budget = least_budget();
  EXPECT_FALSE(answer(budget - 1).run);
  const PlanAnswer planned = answer(budget);
  ASSERT_TRUE(planned.run);
  const int64_t told = planned.run->account.gpus[0].peak_bytes;
  EXPECT_EQ(told, budget);

  EngineRun run(config_, under(budget));
  c10::SetCPUAllocator(&counter(), /*priority=*/255);
  run.train(1);
  const int64_t before = counter().live();
  counter().restart();
  run.train(2);
  const int64_t measured = run.engine().gpu_peak_bytes()[0] + counter().peak() - before;
  EXPECT_LE(measured, told);
  // Experts' temporaries are priced as on GPUs, whose grouped products need more than the CPU's: so much of the whole in models as small as these.
  EXPECT_GE(measured, told * 85 / 100);
}

INSTANTIATE_TEST_SUITE_P(Families, Budget, ::testing::Combine(::testing::Values("mixtral", "qwen3_moe", "qwen3_5_moe", "gemma4"), ::testing::Values("ep", "local")),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

}  // namespace
}  // namespace oom::runtime
