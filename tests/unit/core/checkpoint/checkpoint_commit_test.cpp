// A process that dies at any moment of a checkpoint's writing, and disks that fill up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../scratch_folder.h"
#include "oom/error.h"
#include "small_checkpoint.h"

namespace oom::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

constexpr CommitPhase kPhases[] = {CommitPhase::kTensorsWritten, CommitPhase::kStateWritten, CommitPhase::kManifestWritten,
                                   CommitPhase::kFolderSynced,   CommitPhase::kRenamed,      CommitPhase::kParentSynced};

/// Runs `action` in a child that dies without cleaning up; returns its exit status.
template <typename Action>
int in_dying_child(Action action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void die_at(const std::filesystem::path& folder, int64_t step, CommitPhase phase) {
  auto options = small_options();
  options.on_phase = [phase](CommitPhase reached) {
    if (reached == phase) ::_exit(7);
  };
  ASSERT_EQ(in_dying_child([&] { write_small(folder, step, options); }), 7);
}

TEST(CheckpointCommit, DyingAtAnyPhaseLeavesAGoodCheckpoint) {
  for (const CommitPhase phase : kPhases) {
    const ScratchFolder folder;
    write_small(folder.path(), 1);
    die_at(folder.path(), 2, phase);
    const bool in_place = phase >= CommitPhase::kRenamed;
    const auto newest = newest_complete(folder.path());
    ASSERT_NE(newest.reader, nullptr);
    EXPECT_TRUE(holds_small(*newest.reader, in_place ? 2 : 1));
    EXPECT_EQ(newest.skipped.size(), in_place ? 0u : 1u);
    if (!in_place) {
      EXPECT_THAT(newest.skipped[0].path.filename().string(), HasSubstr("step-000002.tmp-"));
      EXPECT_THAT(newest.skipped[0].why, HasSubstr("half-written"));
    }
    // The next writer goes on and cleans up.
    write_small(folder.path(), 2);
    EXPECT_TRUE(newest_complete(folder.path()).skipped.empty());
    EXPECT_TRUE(holds_small(*newest_complete(folder.path()).reader, 2));
  }
}

TEST(CheckpointCommit, DyingWhileTheSameStepIsReplacedLeavesAGoodOneOfThatStep) {
  for (const CommitPhase phase : kPhases) {
    const ScratchFolder folder;
    write_small(folder.path(), 2);
    die_at(folder.path(), 2, phase);
    const auto newest = newest_complete(folder.path());
    ASSERT_NE(newest.reader, nullptr);
    EXPECT_TRUE(holds_small(*newest.reader, 2));
  }
}

TEST(CheckpointCommit, AnotherOfTheSameStepReplacesADamagedOne) {
  const ScratchFolder folder;
  const auto path = write_small(folder.path(), 2);
  write_file(path / kManifestName, "{}");
  EXPECT_EQ(newest_complete(folder.path()).reader, nullptr);
  write_small(folder.path(), 2);
  EXPECT_TRUE(holds_small(*newest_complete(folder.path()).reader, 2));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(CheckpointCommit, AFullDiskIsNamedAndLeavesThePreviousOneGood) {
  const ScratchFolder folder;
  write_small(folder.path(), 1);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{600}, rlim_t{1500}}) {
    const int status = in_dying_child([&] {
      // A limit on file sizes fails writes in their middle, as a full disk does.
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit sizes{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &sizes);
      std::string message;
      try {
        write_small(folder.path(), 2);
      } catch (const FileError& error) {
        message = error.what();
      }
      const bool named = message.find(".tmp-") != std::string::npos && message.find("writing ") != std::string::npos &&
                         message.find(" bytes at byte ") != std::string::npos && message.find("File too large (errno 27)") != std::string::npos;
      ::_exit(named ? 7 : 8);
    });
    EXPECT_EQ(status, 7) << limit;
    const auto newest = newest_complete(folder.path());
    ASSERT_NE(newest.reader, nullptr);
    EXPECT_TRUE(holds_small(*newest.reader, 1));
    EXPECT_TRUE(newest.skipped.empty()) << "the writer has removed its half";
  }
}

TEST(CheckpointCommit, ADiskTooSmallIsFoundBeforeAnythingIsWritten) {
  const ScratchFolder folder;
  const std::vector<TensorInfo> huge{{"w", Dtype::kF32, {int64_t{1} << 20, int64_t{1} << 36}}};
  try {
    CheckpointWriter writer(folder.path(), 1, huge);
    ADD_FAILURE();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a checkpoint needs"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace oom::checkpoint
