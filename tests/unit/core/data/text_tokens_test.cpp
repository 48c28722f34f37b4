#include "data/text_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/error.h"
#include "../scratch_folder.h"

namespace oom::data {
namespace {

using ::testing::HasSubstr;
using testing::ScratchFolder;
using testing::write_file;

std::string message_of(const std::filesystem::path& path, int64_t vocabulary) {
  try {
    TextTokens tokens(path, vocabulary);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::string text_of(const TokenSource& source) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.token_count()));
  source.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

TEST(TextTokens, ReadsAFileAsBytes) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "gr\xC3\xBC\xC3\x9F");
  const TextTokens tokens(folder / "a.txt", 256);
  std::vector<int32_t> values(6);
  tokens.read(0, values);
  EXPECT_THAT(values, ::testing::ElementsAre('g', 'r', 0xC3, 0xBC, 0xC3, 0x9F));
  EXPECT_EQ(tokens.document_count(), 1);
  EXPECT_THAT(tokens.document_begins(0, 6), ::testing::ElementsAre(0));
}

TEST(TextTokens, ReadsAFolderInTheOrderOfPathsEachFileADocument) {
  const ScratchFolder folder;
  write_file(folder / "b.txt", "BB");
  write_file(folder / "a/z.txt", "az");
  write_file(folder / "a/empty.txt", "");
  write_file(folder / "c/d/e.txt", "cde");
  write_file(folder / ".hidden/x.txt", "\xFF");
  write_file(folder / ".also_hidden", "\xFF");
  const TextTokens tokens(folder.path(), 300);
  EXPECT_EQ(text_of(tokens), "azBBcde");
  EXPECT_EQ(tokens.document_count(), 4);
  EXPECT_THAT(tokens.document_begins(0, 7), ::testing::ElementsAre(0, 2, 4));
  EXPECT_THAT(tokens.document_begins(1, 4), ::testing::ElementsAre(2));
  EXPECT_THAT(tokens.document_begins(5, 7), ::testing::IsEmpty());
  std::vector<int32_t> middle(4);
  tokens.read(1, middle);
  EXPECT_THAT(middle, ::testing::ElementsAre('z', 'B', 'B', 'c'));
}

TEST(TextTokens, NamesWhatIsWrong) {
  const ScratchFolder folder;
  write_file(folder / "bad.txt", "abc\xE2\x28\xA1");
  EXPECT_THAT(message_of(folder / "bad.txt", 256), HasSubstr("bad.txt: is not UTF-8 from byte 3 on"));
  EXPECT_THAT(message_of(folder / "bad.txt", 255), HasSubstr("at least 256; the model's has 255"));
  EXPECT_THAT(message_of(folder / "none.txt", 256), HasSubstr("none.txt: cannot be opened for reading: No such file"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_THAT(message_of(folder / "empty", 256), HasSubstr("folder has no files"));
}

TEST(TextTokens, ABadByteBeyondTheFirstPieceIsFoundAndNamed) {
  const ScratchFolder folder;
  std::string text((size_t{1} << 20) - 1, 'x');
  text += "\xC3\xA9";  // across the limit of two pieces
  text += std::string(100, 'y');
  write_file(folder / "good.txt", text);
  EXPECT_EQ(message_of(folder / "good.txt", 256), "no error");
  write_file(folder / "bad.txt", text + "\xC3");
  EXPECT_THAT(message_of(folder / "bad.txt", 256), HasSubstr(cat("from byte ", text.size(), " on")));
}

TEST(TextTokens, AFileThatShrinksLaterIsAnError) {
  const ScratchFolder folder;
  write_file(folder / "a.txt", "abcdef");
  const TextTokens tokens(folder / "a.txt", 256);
  std::filesystem::resize_file(folder / "a.txt", 3);
  std::vector<int32_t> values(6);
  EXPECT_THROW(tokens.read(0, values), FileError);
}

}  // namespace
}  // namespace oom::data
