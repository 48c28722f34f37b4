#include "data/target_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "../scratch_folder.h"
#include "data/megatron_writer.h"
#include "data/sample_stream.h"
#include "oom/error.h"

namespace oom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNone = kIgnoredTarget;

std::string mask_text(const std::vector<bool>& counts, uint64_t tokens, uint64_t version = 1) {
  std::string text(kMaskMagic);
  text.append(reinterpret_cast<const char*>(&version), 8).append(reinterpret_cast<const char*>(&tokens), 8);
  std::string bits((counts.size() + 7) / 8, '\0');
  for (size_t i = 0; i < counts.size(); ++i) bits[i / 8] = static_cast<char>(bits[i / 8] | (counts[i] << (i % 8)));
  return text + bits;
}

class TargetMaskTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text, const char* name = "corpus.mask") {
    oom::testing::write_file(folder_ / name, text);
    return folder_ / name;
  }
  std::string refusal(const std::string& text, int64_t tokens) {
    try {
      TargetMask(write(text), tokens);
    } catch (const FileError& error) {
      return error.what();
    }
    return "(nothing)";
  }
  oom::testing::ScratchFolder folder_;
};

TEST_F(TargetMaskTest, ReplacesWhatDoesNotCountFromAnyPosition) {
  std::minstd_rand generator(3);
  std::vector<bool> counts(1003);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = generator() % 3 != 0;
  const TargetMask mask(write(mask_text(counts, counts.size())), static_cast<int64_t>(counts.size()));
  EXPECT_EQ(mask.count(), std::count(counts.begin(), counts.end(), true));
  for (const int64_t begin : {0, 1, 7, 8, 9, 500, 1002, 1003}) {
    for (const int64_t length : {0, 1, 7, 8, 9, 64, 501}) {
      if (begin + length > static_cast<int64_t>(counts.size())) continue;
      std::vector<int32_t> targets(static_cast<size_t>(length));
      std::iota(targets.begin(), targets.end(), static_cast<int32_t>(begin));
      int64_t replaced = 0;
      std::vector<int32_t> expected;
      for (int64_t i = begin; i < begin + length; ++i) {
        expected.push_back(counts[static_cast<size_t>(i)] ? static_cast<int32_t>(i) : kNone);
        replaced += !counts[static_cast<size_t>(i)];
      }
      EXPECT_EQ(mask.apply(begin, targets, kNone), replaced);
      EXPECT_EQ(targets, expected) << begin << " + " << length;
    }
  }
}

TEST_F(TargetMaskTest, CountsATargetOnceThatIsIgnoredAlready) {
  const TargetMask mask(write(mask_text({false, true, false}, 3)), 3);
  std::vector<int32_t> targets{kNone, 5, 6};
  EXPECT_EQ(mask.apply(0, targets, kNone), 1);
  EXPECT_THAT(targets, ElementsAre(kNone, 5, kNone));
}

TEST_F(TargetMaskTest, DamagedFilesAreRefused) {
  const std::vector<bool> counts(20, true);
  const std::string good = mask_text(counts, 20);
  EXPECT_EQ(refusal(good, 20), "(nothing)");
  EXPECT_THAT(refusal("", 20), HasSubstr("corpus.mask: too short for a mask: 0 bytes"));
  EXPECT_THAT(refusal(good.substr(0, 23), 20), HasSubstr("too short for a mask"));
  std::string other = good;
  other[0] = 'X';
  EXPECT_THAT(refusal(other, 20), HasSubstr("does not begin with OOMMASK"));
  EXPECT_THAT(refusal(mask_text(counts, 20, 2), 20), HasSubstr("mask version must be 1; got 2"));
  EXPECT_THAT(refusal(good, 21), HasSubstr("is the mask of 20 tokens; the files beside it hold 21"));
  EXPECT_THAT(refusal(mask_text(counts, uint64_t{1} << 63), 20), HasSubstr("is the mask of 9223372036854775808 tokens"));
  EXPECT_THAT(refusal(good.substr(0, 26), 20), HasSubstr("must have 27 bytes for 20 tokens; got 26"));
  EXPECT_THAT(refusal(good + "x", 20), HasSubstr("must have 27 bytes for 20 tokens; got 28"));
  EXPECT_THAT(refusal(mask_text(std::vector<bool>(21, true), 20), 20), HasSubstr("bits set beyond its last token"));
}

// Whatever the bytes: a FileError, or a mask that reads.
TEST_F(TargetMaskTest, MutatedFilesAreRefusedOrRead) {
  std::minstd_rand generator(5);
  const std::string good = mask_text(std::vector<bool>(1000, true), 1000);
  int refused = 0, read = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text = good;
    for (unsigned change = generator() % 3; change < 3; ++change) {
      const size_t at = generator() % (generator() % 2 ? 24 : text.size());
      if (at >= text.size()) continue;
      if (generator() % 4 == 0) text.resize(at);
      else text[at] = static_cast<char>(generator());
      if (text.empty()) text.assign(1, 'x');
    }
    try {
      const TargetMask mask(write(text), 1000);
      std::vector<int32_t> targets(1000, 1);
      EXPECT_EQ(mask.apply(0, targets, kNone), 1000 - mask.count());
      ++read;
    } catch (const FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(read, 50);
}

TEST_F(TargetMaskTest, IsFoundBesideTheTokenFiles) {
  EXPECT_EQ(TargetMask::find(folder_ / "corpus", 3), nullptr);
  write(mask_text({true, true, false}, 3));
  for (const char* name : {"corpus", "corpus.bin", "corpus.idx"}) EXPECT_EQ(TargetMask::find(folder_ / name, 3)->count(), 2) << name;
  EXPECT_THROW(TargetMask::find(folder_ / "corpus", 4), FileError);
}

// Token t of the stream is masked as the target of token t - 1, and read as input all the same.
TEST_F(TargetMaskTest, SamplesIgnoreMaskedTargets) {
  MegatronWriter writer(folder_ / "corpus", MegatronType::kUint16);
  for (const std::vector<int32_t>& document : {std::vector<int32_t>{10, 11, 12}, {13, 14, 15, 16}, {17, 18}}) {
    writer.append_sequence(document);
    writer.end_document();
  }
  writer.finish();
  write(mask_text({false, true, false, true, true, true, false, true, true}, 9));
  const auto stream = [&](Documents documents) {
    return SampleStream(std::make_unique<MegatronTokens>(folder_ / "corpus", 100), {.sequence_length = 4, .documents = documents}, TargetMask::find(folder_ / "corpus", 9));
  };
  Batch batch = stream(Documents::kJoined).batch(0, 2, 0, 1);
  EXPECT_THAT(batch.inputs, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17));
  EXPECT_THAT(batch.targets, ElementsAre(11, kNone, 13, 14, 15, kNone, 17, 18));
  EXPECT_EQ(batch.valid_targets, 6);
  batch = stream(Documents::kIsolated).batch(0, 2, 0, 1);
  EXPECT_THAT(batch.targets, ElementsAre(11, kNone, kNone, 14, 15, kNone, kNone, 18));
  EXPECT_EQ(batch.valid_targets, 4);
}

}  // namespace
}  // namespace oom::data
