#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "../scratch_folder.h"
#include "oom/error.h"

namespace oom::base {
namespace {

using ::testing::HasSubstr;
using testing::ScratchFolder;
using testing::write_file;

template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(File, AppendsAndReadsByPosition) {
  const ScratchFolder folder;
  std::vector<std::byte> piece((size_t{7} << 20) + 13);
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  {
    File file = File::create(folder / "a");
    for (int i = 0; i < 12; ++i) file.append(piece);  // past two rounds of write-back
    file.sync();
    EXPECT_EQ(file.size_bytes(), 12 * static_cast<int64_t>(piece.size()));
  }
  const File file = File::open(folder / "a");
  std::vector<std::byte> read(piece.size());
  for (int i = 0; i < 12; ++i) {
    file.read_at(i * static_cast<int64_t>(piece.size()), read);
    ASSERT_EQ(read, piece) << i;
  }
}

TEST(File, RefusesRangesOutsideAndFilesThatShrink) {
  const ScratchFolder folder;
  write_file(folder / "a", "0123456789");
  const File file = File::open(folder / "a");
  std::vector<std::byte> four(4);
  EXPECT_NO_THROW(file.read_at(6, four));
  EXPECT_THAT(message_of([&] { file.read_at(7, four); }), HasSubstr("a: 4 bytes wanted at byte 7 of a file of 10 bytes"));
  EXPECT_THROW(file.read_at(-1, four), FileError);
  EXPECT_THROW(file.read_at(INT64_MAX, four), FileError);
  std::filesystem::resize_file(folder / "a", 8);
  EXPECT_THAT(message_of([&] { file.read_at(6, four); }), HasSubstr("has become shorter while in use: it ends at byte 8"));
}

TEST(File, NamesPathAndCause) {
  const ScratchFolder folder;
  EXPECT_THAT(message_of([&] { File::open(folder / "none"); }), HasSubstr("none: cannot be opened for reading: No such file or directory (errno 2)"));
  EXPECT_THAT(message_of([&] { File::open(folder.path()); }), HasSubstr("is not a regular file"));
  write_file(folder / "a", "x");
  EXPECT_THAT(message_of([&] { File::create(folder / "a"); }), HasSubstr("cannot be created: File exists"));
  EXPECT_THAT(message_of([&] { read_text_file(folder / "a", 0); }), HasSubstr("has 1 bytes, more than the 0"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { File::open(folder / "pipe"); }), HasSubstr("is not a regular file")) << "and does not wait for a writer";
}

TEST(File, OverwritesAndExtends) {
  const ScratchFolder folder;
  overwrite_text_file(folder / "a", "a longer text");
  overwrite_text_file(folder / "a", "short");
  EXPECT_EQ(read_text_file(folder / "a", 100), "short");
  File file = File::extend(folder / "a");
  EXPECT_EQ(file.size_bytes(), 5);
  file.append(std::as_bytes(std::span(std::string_view("er"))));
  EXPECT_EQ(read_text_file(folder / "a", 100), "shorter");
  EXPECT_THAT(message_of([&] { overwrite_text_file("/dev/full", "x"); }), HasSubstr("/dev/full: writing 1 bytes at byte 0 failed: No space left on device (errno 28). Free room on the disk"));
}

TEST(File, MapsWholeFilesEmptyOnesToo) {
  const ScratchFolder folder;
  write_file(folder / "a", "abc");
  write_file(folder / "empty", "");
  const MappedFile mapped(folder / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()), "abc");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(File, TellsFreeDiskOfPathsThatDoNotExistYet) {
  const ScratchFolder folder;
  EXPECT_GT(free_disk_bytes(folder / "x/y/z"), 0);
}

}  // namespace
}  // namespace oom::base
