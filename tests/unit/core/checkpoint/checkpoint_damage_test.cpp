#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "mutations.h"
#include "oom/error.h"
#include "small_checkpoint.h"

namespace oom::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// Few files, so that every byte of each can be tried.
std::filesystem::path write_compact(const std::filesystem::path& folder) {
  auto options = small_options();
  options.file_bytes = 1 << 20;
  options.block_bytes = 512;
  return write_small(folder, 5, options);
}

std::string message_of(const std::filesystem::path& path) {
  try {
    const CheckpointReader reader(path);
    reader.verify(1);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckpointDamage, AFlippedBitAnywhereIsFoundAndTheFileNamed) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  const auto path = write_compact(folder.path());
  for (const auto& file : files_of(path)) {
    const std::string content = read_file(file);
    for (size_t at = 0; at < content.size(); ++at) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      write_file(file, damaged);
      const std::string message = message_of(path);
      // A space of the manifest may become another: its content is then what it was.
      if (file.filename() == kManifestName && std::isspace(static_cast<unsigned char>(content[at])) &&
          std::isspace(static_cast<unsigned char>(damaged[at])))
        continue;
      ASSERT_THAT(message, HasSubstr(file.filename().string())) << file << " byte " << at;
    }
    write_file(file, content);
  }
  EXPECT_EQ(message_of(path), "no error");
}

TEST(CheckpointDamage, ReadingADamagedRangeIsRefusedAndTheRestIsNot) {
  const ScratchFolder folder;
  const auto path = write_small(folder.path(), 5);
  const auto file = path / "master-00002.safetensors";  // layers.0.experts alone
  std::string content = read_file(file);
  content[content.size() - 1] ^= 1;
  write_file(file, content);
  const CheckpointReader reader(path);
  std::vector<float> first(30), last(1);
  reader.read("layers.0.experts", StateStream::kMaster, 0, first);
  EXPECT_EQ(first[29], small_value(kSmallTensors[2], StateStream::kMaster, 29, 5));
  EXPECT_THROW(reader.read("layers.0.experts", StateStream::kMaster, 119, last), FileError);
  reader.read("layers.0.experts", StateStream::kFirstMoment, 119, last);
}

TEST(CheckpointDamage, EveryTruncationAndMissingFileIsNamed) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  const auto path = write_compact(folder.path());
  for (const auto& file : files_of(path)) {
    const std::string content = read_file(file);
    const bool manifest = file.filename() == kManifestName;
    for (size_t length = 0; length < content.size() - manifest; ++length) {  // the manifest's last byte is a line end
      write_file(file, content.substr(0, length));
      ASSERT_THAT(message_of(path), HasSubstr(file.filename().string())) << file << " cut at " << length;
    }
    write_file(file, content + "x");
    EXPECT_THAT(message_of(path), HasSubstr(file.filename().string()));
    std::filesystem::remove(file);
    EXPECT_THAT(message_of(path), HasSubstr(file.filename().string()));
    write_file(file, content);
  }
  EXPECT_EQ(message_of(path), "no error");
}

TEST(CheckpointDamage, AForgedManifestCannotLeaveTheFolderOrLieAboutCounts) {
  const auto message = [](const Manifest& manifest) -> std::string {
    try {
      parse_manifest(format_manifest(manifest), "manifest.json");
    } catch (const FileError& error) {
      return error.what();
    }
    return "no error";
  };
  const ManifestFile good{"a", 100, {1, 2}};
  EXPECT_EQ(message({.step = 1, .block_bytes = 64, .files = {good}}), "no error");
  EXPECT_THAT(message({.step = 1, .block_bytes = 64, .files = {{"../a", 100, {1, 2}}}}), HasSubstr("must be the name of a file in the same folder"));
  EXPECT_THAT(message({.step = 1, .block_bytes = 64, .files = {{"/etc/passwd", 100, {1, 2}}}}), HasSubstr("must be the name of a file"));
  EXPECT_THAT(message({.step = 1, .block_bytes = 64, .files = {{"a", 129, {1, 2}}}}), HasSubstr("3 block checksums are expected; got 2"));
  EXPECT_THAT(message({.step = 1, .block_bytes = 64, .files = {{"a", INT64_MAX, {1}}}}), HasSubstr("block checksums are expected; got 1"));
  EXPECT_THAT(message({.step = 1, .block_bytes = 0, .files = {}}), HasSubstr("block_bytes must be from 64"));
  EXPECT_THAT(message({.step = 1, .block_bytes = INT64_MAX, .files = {}}), HasSubstr("block_bytes must be from 64"));
  EXPECT_THAT(message({.step = 1, .block_bytes = 64, .files = {good, good}}), HasSubstr("listed twice: a"));
}

TEST(CheckpointDamage, NothingFollowsAManifest) {
  const std::string text = format_manifest({.step = 1, .block_bytes = 64, .files = {{"a", 100, {1, 2}}}});
  EXPECT_NO_THROW(parse_manifest(text, "m"));
  EXPECT_THROW(parse_manifest(text + std::string(1, '\0'), "m"), FileError);
  EXPECT_THROW(parse_manifest(text + std::string("\0{", 2), "m"), FileError);
  EXPECT_THROW(parse_manifest(text + "{}", "m"), FileError);
}

TEST(CheckpointDamage, MutatedFilesAreReadOrRefusedButNeverCrash) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  const auto path = write_small(folder.path(), 5);
  const auto files = files_of(path);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const auto& file = files[random() % files.size()];
    const std::string content = read_file(file);
    std::string damaged = content;
    testing::mutate(damaged, random);
    write_file(file, damaged);
    if (damaged != content && file.filename() != kManifestName) {
      EXPECT_NE(message_of(path), "no error");
    } else {
      message_of(path);
    }
    write_file(file, content);
  }
  // Many more of the two texts, in memory.
  const std::string text = read_file(path / kManifestName);
  const std::string state = read_file(path / kStateName);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = round % 2 == 0 ? text : state;
    testing::mutate(damaged, random);
    try {
      round % 2 == 0 ? static_cast<void>(parse_manifest(damaged, "m")) : static_cast<void>(parse_training_state(damaged, "s"));
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1500);
}

}  // namespace
}  // namespace oom::checkpoint
