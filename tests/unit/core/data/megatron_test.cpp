#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "data/megatron_tokens.h"
#include "data/megatron_writer.h"
#include "oom/error.h"
#include "../scratch_folder.h"

namespace oom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using testing::ScratchFolder;
using testing::write_file;

template <typename T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Index {
  std::string magic = std::string(kMegatronMagic);
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;
  std::optional<uint64_t> sequences;  // what the header says, when it lies
  std::optional<uint64_t> entries;

  std::string bytes() const {
    return magic + raw<uint64_t>({version}) + raw<uint8_t>({type}) +
           raw<uint64_t>({sequences.value_or(lengths.size()), entries.value_or(documents.size())}) + raw(lengths) + raw(pointers) + raw(documents);
  }
};

Index small_index() { return {.lengths = {2, 3, 0, 1}, .pointers = {0, 4, 10, 10}, .documents = {0, 1, 1, 4}}; }
const std::string kSmallBin = raw<uint16_t>({10, 11, 12, 13, 14, 15});

std::string message_of(const ScratchFolder& folder, const std::string& index, const std::string& bin, int64_t vocabulary = 100) {
  write_file(folder / "x.idx", index);
  write_file(folder / "x.bin", bin);
  try {
    const MegatronTokens tokens(folder / "x", vocabulary);
    std::vector<int32_t> all(static_cast<size_t>(tokens.token_count()));
    tokens.read(0, all);
    tokens.document_begins(0, tokens.token_count());
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.token_count()));
  source.read(0, tokens);
  return tokens;
}

TEST(Megatron, ReadsTheFormatAsDescribed) {
  const ScratchFolder folder;
  write_file(folder / "x.idx", small_index().bytes());
  write_file(folder / "x.bin", kSmallBin);
  const MegatronTokens tokens(folder / "x", 100);
  EXPECT_THAT(all_of(tokens), ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_EQ(tokens.document_count(), 3);
  EXPECT_THAT(tokens.document_begins(0, 6), ElementsAre(0, 2));
  EXPECT_THAT(tokens.document_begins(1, 2), ElementsAre());
  EXPECT_THAT(tokens.document_begins(2, 3), ElementsAre(2));
  EXPECT_EQ(MegatronTokens(folder / "x.bin", 100).token_count(), 6);
  EXPECT_EQ(MegatronTokens(folder / "x.idx", 100).token_count(), 6);
  EXPECT_THAT(tokens.description(), HasSubstr("6 tokens (uint16) in 3 documents"));
}

TEST(Megatron, SequencesMayLieAnywhereInTheFile) {
  const ScratchFolder folder;
  Index index = small_index();
  index.pointers = {8, 0, 0, 6};
  write_file(folder / "x.idx", index.bytes());
  write_file(folder / "x.bin", kSmallBin);
  const MegatronTokens tokens(folder / "x", 100);
  EXPECT_THAT(all_of(tokens), ElementsAre(14, 15, 10, 11, 12, 13));
  for (int64_t begin = 0; begin < 6; ++begin) {
    std::vector<int32_t> rest(static_cast<size_t>(6 - begin));
    tokens.read(begin, rest);
    const auto whole = all_of(tokens);
    EXPECT_EQ(rest, std::vector<int32_t>(whole.begin() + begin, whole.end()));
  }
  EXPECT_THAT(tokens.document_begins(0, 6), ElementsAre(0, 2));
}

TEST(Megatron, WritesAndReadsEveryType) {
  for (const auto type : {MegatronType::kUint8, MegatronType::kInt8, MegatronType::kInt16, MegatronType::kInt32, MegatronType::kInt64,
                          MegatronType::kUint16}) {
    const ScratchFolder folder;
    MegatronWriter writer(folder / "x", type);
    writer.append_sequence(std::vector<int32_t>{1, 2, 3});
    writer.append_sequence(std::vector<int32_t>{4});
    writer.end_document();
    writer.end_document();
    writer.append_sequence(std::vector<int32_t>{127});
    writer.finish();
    const MegatronTokens tokens(folder / "x", 128);
    EXPECT_THAT(all_of(tokens), ElementsAre(1, 2, 3, 4, 127)) << megatron_type_name(type);
    EXPECT_EQ(tokens.document_count(), 3);
    EXPECT_THAT(tokens.document_begins(0, 5), ElementsAre(0, 4));
  }
}

TEST(Megatron, TheWriterRefusesTokensThatDoNotFit) {
  const ScratchFolder folder;
  MegatronWriter writer(folder / "x", MegatronType::kUint16);
  writer.append_sequence(std::vector<int32_t>{65535});
  EXPECT_THROW(writer.append_sequence(std::vector<int32_t>{65536}), FileError);
  EXPECT_THROW(writer.append_sequence(std::vector<int32_t>{-1}), FileError);
  EXPECT_THROW(MegatronWriter(folder / "x", MegatronType::kUint16), FileError) << "an existing file is not overwritten";
}

TEST(Megatron, NamesTheTokenOutsideTheVocabulary) {
  const ScratchFolder folder;
  EXPECT_THAT(message_of(folder, small_index().bytes(), kSmallBin, 14),
              HasSubstr("x.bin: token 4 (byte 8) is outside the model's vocabulary of 14; got 14"));
  Index negative{.type = 4, .lengths = {2}, .pointers = {0}, .documents = {0, 1}};
  EXPECT_THAT(message_of(folder, negative.bytes(), raw<int32_t>({3, -1})), HasSubstr("token 1 (byte 4) is outside the model's vocabulary of 100; got -1"));
  Index large{.type = 5, .lengths = {1}, .pointers = {0}, .documents = {0, 1}};
  EXPECT_THAT(message_of(folder, large.bytes(), raw<int64_t>({(int64_t{1} << 32) + 5})), HasSubstr("got 4294967301"));
}

TEST(Megatron, RefusesIndexesThatLie) {
  const ScratchFolder folder;
  const auto with = [&](auto change) {
    Index index = small_index();
    change(index);
    return message_of(folder, index.bytes(), kSmallBin);
  };
  EXPECT_EQ(with([](Index&) {}), "no error");
  EXPECT_THAT(with([](Index& i) { i.magic[0] = 'X'; }), HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(with([](Index& i) { i.version = 2; }), HasSubstr("index version must be 1; got 2"));
  for (const int code : {0, 6, 7, 9, 255})
    EXPECT_THAT(with([&](Index& i) { i.type = static_cast<uint8_t>(code); }), HasSubstr(cat("got code ", code)));
  EXPECT_THAT(with([](Index& i) { i.sequences = 5; }), HasSubstr("header says 5 sequences"));
  EXPECT_THAT(with([](Index& i) { i.sequences = ~uint64_t{0}; }), HasSubstr("header says 18446744073709551615 sequences"));
  EXPECT_THAT(with([](Index& i) { i.sequences = uint64_t{1} << 62, i.entries = uint64_t{1} << 61; }), HasSubstr("does not match"));
  EXPECT_THAT(with([](Index& i) { i.entries = 3; }), HasSubstr("3 document entries"));
  EXPECT_THAT(with([](Index& i) { i.documents.clear(); }), HasSubstr("no document entries"));
  EXPECT_THAT(with([](Index& i) { i.lengths[1] = -3; }), HasSubstr("sequence 1 has a negative length: -3"));
  EXPECT_THAT(with([](Index& i) { i.lengths[3] = 2; }), HasSubstr("sequence 3 (2 tokens from byte 10) lies outside"));
  EXPECT_THAT(with([](Index& i) { i.lengths[3] = 0x7FFFFFFF; }), HasSubstr("lies outside"));
  EXPECT_THAT(with([](Index& i) { i.lengths[3] = 0; }), HasSubstr("describes 5 tokens of 2 bytes, but"));
  EXPECT_THAT(with([](Index& i) { i.pointers[0] = -2; }), HasSubstr("sequence 0 (2 tokens from byte -2) lies outside"));
  EXPECT_THAT(with([](Index& i) { i.pointers[2] = 13; }), HasSubstr("sequence 2 (0 tokens from byte 13) lies outside"));
  EXPECT_THAT(with([](Index& i) { i.pointers[3] = INT64_MAX; }), HasSubstr("lies outside"));
  EXPECT_THAT(with([](Index& i) { i.documents[0] = 1; }), HasSubstr("first document entry must be 0; got 1"));
  EXPECT_THAT(with([](Index& i) { i.documents[2] = 0; }), HasSubstr("document entry 2 must lie between"));
  EXPECT_THAT(with([](Index& i) { i.documents[2] = 9; }), HasSubstr("document entry 2 must lie between"));
  EXPECT_THAT(with([](Index& i) { i.documents[1] = -1; }), HasSubstr("document entry 1 must lie between"));
  EXPECT_THAT(with([](Index& i) { i.documents[3] = 3; }), HasSubstr("last document entry must be the number of sequences (4); got 3"));
}

TEST(Megatron, RefusesEveryTruncationOfEitherFileAndAnythingTooMuch) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  const std::string index = small_index().bytes();
  for (size_t length = 0; length < index.size(); ++length)
    EXPECT_THAT(message_of(folder, index.substr(0, length), kSmallBin), HasSubstr("x.idx: ")) << length;
  for (size_t length = 0; length < kSmallBin.size(); ++length)
    EXPECT_THAT(message_of(folder, index, kSmallBin.substr(0, length)), HasSubstr("do not belong together")) << length;
  EXPECT_THAT(message_of(folder, index + "\1", kSmallBin), HasSubstr("does not match the file's"));
  EXPECT_THAT(message_of(folder, index, kSmallBin + "ab"), HasSubstr("do not belong together"));
  std::filesystem::remove(folder / "x.bin");
  EXPECT_THROW(MegatronTokens(folder / "x", 100), FileError);
  EXPECT_THROW(MegatronTokens(folder / "none", 100), FileError);
  EXPECT_THROW(MegatronTokens(folder.path(), 100), FileError);
}

TEST(Megatron, MutatedFilesAreReadOrRefusedButNeverCrash) {
  const ScratchFolder folder(ScratchFolder::kMemory);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string index = small_index().bytes();
    std::string bin = kSmallBin;
    for (int change = 0; change < 1 + static_cast<int>(random() % 3); ++change) {
      std::string& file = random() % 8 == 0 ? bin : index;
      if (file.empty()) continue;
      const size_t at = random() % file.size();
      switch (random() % 4) {
        case 0: file[at] = static_cast<char>(random()); break;
        case 1: file[at] = static_cast<char>(file[at] ^ (1 << random() % 8)); break;
        case 2: file.resize(at); break;
        default: file.insert(at, 1 + random() % 9, static_cast<char>(random() % 2 ? 0xFF : 0)); break;
      }
    }
    refused += message_of(folder, index, bin) != "no error";
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

}  // namespace
}  // namespace oom::data
