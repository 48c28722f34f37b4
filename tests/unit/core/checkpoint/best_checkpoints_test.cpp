#include "checkpoint/best_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "../scratch_folder.h"
#include "checkpoint/checkpoint_folder.h"
#include "oom/error.h"
#include "small_checkpoint.h"

namespace oom::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class BestCheckpoints : public ::testing::Test {
 protected:
  void write(int64_t step, std::optional<double> loss, int64_t tokens = 64) {
    CheckpointWriter writer(folder_.path(), step, {{"w", Dtype::kF32, {2}}});
    writer.write_tensors([](const TensorInfo&, StateStream, const FloatSink& sink) { sink(std::vector<float>{1, 2}); });
    if (loss) writer.write_text(kEvaluationName, format_evaluation(*loss, tokens));
    TrainingState state;
    state.step = step;
    writer.commit(state);
  }
  oom::testing::ScratchFolder folder_;
};

TEST_F(BestCheckpoints, AreRankedByLossAndTheNewerOfEqualsFirst) {
  EXPECT_THAT(best_checkpoints(folder_ / "nowhere", 3), IsEmpty());
  write(1, 4.0);
  write(2, 3.0);
  write(3, std::nullopt);
  write(4, 3.0);
  write(5, std::numeric_limits<double>::quiet_NaN());
  write(6, 3.5);
  write(7, 0.0, /*tokens=*/0);
  EXPECT_THAT(best_checkpoints(folder_.path(), 9), ElementsAre("step-000004", "step-000002", "step-000006", "step-000001"));
  EXPECT_THAT(best_checkpoints(folder_.path(), 2), ElementsAre("step-000004", "step-000002"));
  EXPECT_THAT(best_checkpoints(folder_.path(), 0), IsEmpty());
  fs::resize_file(folder_ / "step-000004/evaluation.json", 3);
  EXPECT_THAT(best_checkpoints(folder_.path(), 1), ElementsAre("step-000002"));
}

TEST_F(BestCheckpoints, AreKeptBesideTheNewest) {
  for (const auto& [step, loss] : {std::pair<int64_t, double>{1, 3.0}, {2, 1.0}, {3, 2.0}, {4, 4.0}, {5, 5.0}}) write(step, loss);
  prune(folder_.path(), 2, best_checkpoints(folder_.path(), 2));
  std::vector<std::string> left;
  for (const fs::path& path : checkpoint_paths(folder_.path())) left.push_back(path.filename());
  EXPECT_THAT(left, ElementsAre("step-000005", "step-000004", "step-000003", "step-000002"));
}

TEST_F(BestCheckpoints, TheLinkFollowsTheBestAndIsNoCheckpoint) {
  write(1, 3.0);
  write(2, 2.0);
  mark_best(folder_.path(), "step-000001");
  EXPECT_EQ(fs::read_symlink(folder_ / "best"), "step-000001");
  mark_best(folder_.path(), "step-000002");
  mark_best(folder_.path(), "step-000002");
  EXPECT_EQ(fs::read_symlink(folder_ / "best"), "step-000002");
  EXPECT_EQ(CheckpointReader(folder_ / "best").state().step, 2);
  EXPECT_EQ(checkpoint_paths(folder_.path()).size(), 2u);
  mark_best(folder_.path(), "");
  mark_best(folder_.path(), "");
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder_ / "best")));
}

TEST_F(BestCheckpoints, AFolderOfThatNameIsNotReplaced) {
  write(1, 3.0);
  fs::create_directories(folder_ / "best/mine");
  EXPECT_THROW(mark_best(folder_.path(), "step-000001"), FileError);
  EXPECT_TRUE(fs::exists(folder_ / "best/mine"));
}

}  // namespace
}  // namespace oom::checkpoint
