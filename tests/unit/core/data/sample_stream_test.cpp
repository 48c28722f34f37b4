#include "data/sample_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "oom/error.h"

namespace oom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Tokens 1000, 1001, ... with documents at given positions.
class CountingTokens final : public TokenSource {
 public:
  CountingTokens(int64_t count, std::vector<int64_t> documents) : count_(count), documents_(std::move(documents)) {}
  int64_t token_count() const override { return count_; }
  void read(int64_t begin, std::span<int32_t> tokens) const override {
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + static_cast<int64_t>(tokens.size()), count_);
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(1000 + begin));
  }
  int64_t document_count() const override { return static_cast<int64_t>(documents_.size()); }
  std::vector<int64_t> document_begins(int64_t begin, int64_t end) const override {
    std::vector<int64_t> inside;
    for (const int64_t at : documents_)
      if (at >= begin && at < end) inside.push_back(at);
    return inside;
  }
  std::string description() const override { return "counting"; }

 private:
  int64_t count_;
  std::vector<int64_t> documents_;
};

SampleStream stream_of(int64_t tokens, SampleOptions options, std::vector<int64_t> documents = {0}) {
  return SampleStream(std::make_unique<CountingTokens>(tokens, std::move(documents)), options);
}

TEST(SampleStream, CountsSamplesAndRefusesTooFewTokens) {
  EXPECT_EQ(stream_of(5, {.sequence_length = 4}).sample_count(), 1);
  EXPECT_EQ(stream_of(8, {.sequence_length = 4}).sample_count(), 1);
  EXPECT_EQ(stream_of(9, {.sequence_length = 4}).sample_count(), 2);
  EXPECT_EQ(stream_of(2, {.sequence_length = 1}).sample_count(), 1);
  for (const int64_t tokens : {0, 1, 4}) {
    try {
      stream_of(tokens, {.sequence_length = 4});
      ADD_FAILURE() << tokens;
    } catch (const FileError& error) {
      EXPECT_THAT(error.what(), HasSubstr(cat("too few tokens for one sample: ", tokens, ", and data.sequence_length = 4 needs 5")));
    }
  }
}

TEST(SampleStream, JoinedSamplesOverlapByOneToken) {
  const auto stream = stream_of(9, {.sequence_length = 4}, {0, 2, 6});
  const Batch batch = stream.batch(0, 2, 0, 1);
  EXPECT_THAT(batch.inputs, ElementsAre(1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007));
  EXPECT_THAT(batch.targets, ElementsAre(1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.document_begins, ElementsAre(ElementsAre(0, 4), ElementsAre(0, 4)));
  EXPECT_EQ(batch.valid_targets, 8);
  EXPECT_THAT(batch.cumulative_lengths(0, 2), ElementsAre(0, 4, 8));
}

TEST(SampleStream, IsolatedDocumentsRestartPositionsAndIgnoreTargetsBeyond) {
  // Documents begin inside a sample (2), at a sample's first token (4), at its last (11), and at the target of its last input (16).
  const auto stream = stream_of(17, {.sequence_length = 4, .documents = Documents::kIsolated}, {0, 2, 4, 11, 16});
  ASSERT_EQ(stream.sample_count(), 4);
  const Batch batch = stream.batch(0, 4, 0, 1);
  constexpr int32_t kNone = kIgnoredTarget;
  EXPECT_THAT(batch.targets, ElementsAre(1001, kNone, 1003, kNone, 1005, 1006, 1007, 1008, 1009, 1010, kNone, 1012, 1013, 1014, 1015, kNone));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 0, 1, 2, 0, 0, 1, 2, 3));
  EXPECT_THAT(batch.document_begins, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(0, 4), ElementsAre(0, 3, 4), ElementsAre(0, 4)));
  EXPECT_EQ(batch.valid_targets, 12);
  EXPECT_THAT(batch.cumulative_lengths(0, 4), ElementsAre(0, 2, 4, 8, 11, 12, 16));
  EXPECT_THAT(batch.cumulative_lengths(2, 2), ElementsAre(0, 3, 4, 8));
}

TEST(SampleStream, IsolatedEqualsAPlainReferenceOnRandomDocuments) {
  std::vector<int64_t> documents{0};
  uint32_t state = 12345;
  while (documents.back() < 400) documents.push_back(documents.back() + 1 + static_cast<int64_t>((state = state * 1664525u + 1013904223u) >> 28));
  constexpr int64_t kLength = 13;
  const auto stream = stream_of(400, {.sequence_length = kLength, .documents = Documents::kIsolated}, documents);
  const auto document_of = [&](int64_t token) { return std::upper_bound(documents.begin(), documents.end(), token) - documents.begin(); };
  Batch batch;
  for (int64_t sample = 0; sample < stream.sample_count(); ++sample) {
    stream.read(std::vector<int64_t>{sample}, batch);
    int32_t position = 0;
    for (int64_t j = 0; j < kLength; ++j) {
      const int64_t token = sample * kLength + j;
      if (j > 0 && document_of(token) != document_of(token - 1)) position = 0;
      ASSERT_EQ(batch.positions[static_cast<size_t>(j)], position++);
      ASSERT_EQ(batch.inputs[static_cast<size_t>(j)], 1000 + token);
      ASSERT_EQ(batch.targets[static_cast<size_t>(j)], document_of(token + 1) == document_of(token) ? 1001 + token : kIgnoredTarget);
    }
    ASSERT_EQ(batch.valid_targets, std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
  }
}

TEST(SampleStream, RanksShareAStepAsWrittenWhateverTheirNumber) {
  for (const auto seed : {std::optional<uint64_t>{}, std::optional<uint64_t>{5}}) {
    const auto stream = stream_of(4 * 23 + 1, {.sequence_length = 4, .shuffle_seed = seed});
    constexpr int64_t kGlobal = 12;
    for (int64_t step = 0; step < 5; ++step) {
      std::vector<int32_t> reference;
      for (int64_t p = step * kGlobal; p < (step + 1) * kGlobal; ++p) {
        const int64_t sample = stream.sample_at(p);
        for (int64_t j = 0; j < 4; ++j) reference.push_back(static_cast<int32_t>(1000 + sample * 4 + j));
      }
      for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
        std::vector<int32_t> inputs;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Batch batch = stream.batch(step, kGlobal, rank, ranks);
          EXPECT_EQ(batch.sample_count, kGlobal / ranks);
          inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
        }
        EXPECT_EQ(inputs, reference) << "step " << step << ", ranks " << ranks;
      }
    }
  }
}

TEST(SampleStream, EpochsCoverEverySampleOnceAndReshuffle) {
  const auto in_order = stream_of(4 * 10 + 1, {.sequence_length = 4});
  const auto shuffled = stream_of(4 * 10 + 1, {.sequence_length = 4, .shuffle_seed = 1});
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(in_order.sample_at(epoch * 10 + i), i);
      order.push_back(shuffled.sample_at(epoch * 10 + i));
    }
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST(SampleStream, HeldOutSamplesAreInNoEpochAndCanBeRead) {
  const auto stream = stream_of(4 * 10 + 1, {.sequence_length = 4, .shuffle_seed = 1, .held_out = 3});
  EXPECT_EQ(stream.sample_count(), 7);
  EXPECT_EQ(stream.held_out(), 3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 7; ++i) order.push_back(stream.sample_at(epoch * 7 + i));
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
  Batch batch;
  stream.read(std::vector<int64_t>{9}, batch);
  EXPECT_THAT(batch.inputs, ElementsAre(1036, 1037, 1038, 1039));
  try {
    stream_of(4 * 10 + 1, {.sequence_length = 4, .held_out = 10});
    ADD_FAILURE();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has 10 samples, and eval.holdout_samples = 10 leaves none to train on"));
  }
}

}  // namespace
}  // namespace oom::data
