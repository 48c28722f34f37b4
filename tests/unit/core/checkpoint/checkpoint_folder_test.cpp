#include "checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "oom/error.h"
#include "small_checkpoint.h"

namespace oom::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void flip_last_byte(const std::filesystem::path& file) {
  std::string content = read_file(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file(file, content);
}

TEST(CheckpointFolder, FindsTheNewestBySteps) {
  const ScratchFolder folder;
  EXPECT_EQ(newest_complete(folder / "none").reader, nullptr);
  EXPECT_EQ(newest_complete(folder.path()).reader, nullptr);
  for (const int64_t step : {999999, 5, 1000000}) write_small(folder.path(), step);
  std::filesystem::create_directory(folder / "step-abc");
  std::filesystem::create_directory(folder / "step--99999999");
  write_file(folder / "notes.txt", "x");
  const auto newest = newest_complete(folder.path());
  ASSERT_NE(newest.reader, nullptr);
  EXPECT_EQ(newest.reader->state().step, 1000000);
  EXPECT_TRUE(newest.skipped.empty());
}

TEST(CheckpointFolder, SkipsAndNamesDamagedAndHalfWrittenOnes) {
  const ScratchFolder folder;
  for (const int64_t step : {1, 2, 3, 4, 5}) write_small(folder.path(), step);
  flip_last_byte(folder / "step-000005/v-00002.safetensors");
  std::filesystem::remove(folder / "step-000004/manifest.json");
  std::filesystem::rename(folder / "step-000003", folder / "step-000006");
  std::filesystem::create_directory(folder / "step-000007.tmp-123");
  const auto newest = newest_complete(folder.path());
  ASSERT_NE(newest.reader, nullptr);
  EXPECT_EQ(newest.reader->state().step, 2);
  ASSERT_EQ(newest.skipped.size(), 4u);
  EXPECT_THAT(newest.skipped[0].why, HasSubstr("half-written"));
  EXPECT_THAT(newest.skipped[1].why, HasSubstr("holds step 3, which is not what its name says"));
  EXPECT_THAT(newest.skipped[2].why, HasSubstr("v-00002.safetensors is damaged: checksum of bytes"));
  EXPECT_THAT(newest.skipped[3].why, HasSubstr("step-000004: has no manifest.json"));
  // Structure alone does not see a flipped bit in a tensor; reading it does.
  const auto quick = newest_complete(folder.path(), Verify::kStructure);
  EXPECT_EQ(quick.reader->state().step, 5);
  EXPECT_THROW(quick.reader->verify(2), FileError);
}

TEST(CheckpointFolder, PruneKeepsTheNewestAndNeverTheOnlyGoodOneIsLost) {
  const ScratchFolder folder;
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) write_small(folder.path(), step);
  EXPECT_THAT(prune(folder.path(), 6), ElementsAre());
  EXPECT_THAT(prune(folder.path(), 3, {"step-000001"}), ElementsAre(folder / "step-000003", folder / "step-000002"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-000001", "step-000004", "step-000005", "step-000006"));
  // Damaged ones do not count as kept, and are left for their owner to look at.
  std::filesystem::remove(folder / "step-000006/manifest.json");
  std::filesystem::remove(folder / "step-000005/state.json");
  prune(folder.path(), 1);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-000004", "step-000005", "step-000006"));
  prune(folder.path(), 0);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-000004", "step-000005", "step-000006"));
}

TEST(CheckpointFolder, RemovesWhatWasAbandonedAndNothingElse) {
  const ScratchFolder folder;
  write_small(folder.path(), 1);
  write_file(folder / "step-000002.tmp-77/master-00001.safetensors", "x");
  write_file(folder / "step-000003.tmp-removed/v-00001.safetensors", "x");
  write_file(folder / "mine.tmp-1", "x");
  remove_abandoned(folder.path());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("mine.tmp-1", "step-000001"));
}

TEST(CheckpointFolder, FreeDiskIsJudgedBeforehand) {
  const ScratchFolder folder;
  EXPECT_NO_THROW(require_free_disk(folder / "run/checkpoints", 1, "a checkpoint"));
  try {
    require_free_disk(folder / "run/checkpoints", int64_t{1} << 60, "3 checkpoints");
    ADD_FAILURE();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("too little room for 3 checkpoints: "));
  }
}

}  // namespace
}  // namespace oom::checkpoint
