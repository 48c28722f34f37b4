#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "../scratch_folder.h"
#include "oom/error.h"
#include "small_checkpoint.h"

namespace oom::checkpoint {
namespace {

using testing::ScratchFolder;

TEST(Checkpoint, HoldsWhatWasWrittenWhateverFilesBlocksAndThreads) {
  for (const int64_t file_bytes : {1, 160, 1 << 20}) {
    for (const int64_t block_bytes : {int64_t{64}, int64_t{100}, kBlockBytes}) {
      for (const int threads : {1, 4}) {
        const ScratchFolder folder;
        const auto path = write_small(folder / "checkpoints", 100, {.file_bytes = file_bytes, .block_bytes = block_bytes, .threads = threads, .on_phase = {}});
        EXPECT_EQ(path, folder / "checkpoints/step-000100");
        const CheckpointReader reader(path);
        EXPECT_TRUE(holds_small(reader, 100)) << file_bytes << " " << block_bytes << " " << threads;
        reader.verify(threads);
        EXPECT_TRUE(holds_small(reader, 100)) << "after verify";
        EXPECT_TRUE(reader.has_text("config.json"));
        EXPECT_FALSE(reader.has_text("other"));
        EXPECT_THROW(reader.text("other"), FileError);
        EXPECT_LE(reader.bytes(), checkpoint_bytes(kSmallTensors));
        std::vector<float> one(1);
        EXPECT_THROW(reader.read("absent", StateStream::kMaster, 0, one), FileError);
        EXPECT_THROW(reader.read("norm", StateStream::kMaster, 3, one), Error);
      }
    }
  }
}

TEST(Checkpoint, SeveralThreadsReadAtOnce) {
  const ScratchFolder folder;
  const CheckpointReader reader(write_small(folder.path(), 3));
  std::vector<std::jthread> threads;
  std::array<bool, 4> good{};
  for (size_t i = 0; i < good.size(); ++i) threads.emplace_back([&, i] { good[i] = holds_small(reader, 3); });
  threads.clear();
  EXPECT_THAT(good, ::testing::Each(true));
}

TEST(Checkpoint, LargerTensorsCrossBlocks) {
  const ScratchFolder folder;
  const std::vector<TensorInfo> tensors{{"w", Dtype::kF32, {3000, 1000}}};  // 12 MB a stream: three blocks of 4 MiB
  CheckpointWriter writer(folder.path(), 1, tensors);
  writer.write_tensors([](const TensorInfo& tensor, StateStream stream, const FloatSink& sink) {
    std::vector<float> row(1000);
    for (int64_t r = 0; r < tensor.shape[0]; ++r) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(r * 1000) + static_cast<float>(i) + static_cast<float>(stream);
      sink(row);
    }
  });
  const CheckpointReader reader(writer.commit({.step = 1}));
  std::vector<float> rows(2000 * 1000);
  reader.read("w", StateStream::kSecondMoment, 500 * 1000, rows);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], static_cast<float>(500 * 1000 + i + 2));
}

TEST(Checkpoint, AWriterThatIsDroppedLeavesNothing) {
  const ScratchFolder folder;
  {
    CheckpointWriter writer(folder.path(), 1, kSmallTensors, small_options());
    writer.write_tensors(small_source(1));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  CheckpointWriter writer(folder.path(), 1, kSmallTensors, small_options());
  EXPECT_THROW(writer.write_tensors([](const TensorInfo&, StateStream, const FloatSink&) { throw DivergedError("not finite"); }), DivergedError);
  EXPECT_THROW(writer.commit(small_state(1)), Error) << "without its tensors";
}

TEST(Checkpoint, ASourceThatGivesTooLittleIsFound) {
  const ScratchFolder folder;
  CheckpointWriter writer(folder.path(), 1, kSmallTensors, small_options());
  EXPECT_THROW(writer.write_tensors([](const TensorInfo&, StateStream, const FloatSink&) {}), Error);
}

TEST(TrainingState, RoundTripsAndNamesWhatIsMissing) {
  const auto state = small_state(12);
  EXPECT_EQ(parse_training_state(format_training_state(state), "state.json"), state);
  EXPECT_EQ(parse_training_state(format_training_state({}), "state.json"), TrainingState{});
  try {
    parse_training_state("{\"step\": 1, \"samples\": -4}", "state.json");
    ADD_FAILURE();
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "state.json: samples must be a whole number from 0 to 2^63 - 1; got -4");
  }
}

}  // namespace
}  // namespace oom::checkpoint
