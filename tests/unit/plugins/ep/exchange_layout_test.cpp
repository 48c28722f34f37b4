// Where rows go: nothing is lost, nothing overlaps, nothing overflows, whatever the router does.
#include "ep/exchange_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace oom::ep {
namespace {

ExchangeShape shape_of(int ranks, int64_t tokens, int64_t top_k, int64_t experts, int64_t chunk, int64_t rows) {
  ExchangeShape shape{.ranks = ranks, .tokens = tokens, .top_k = top_k, .experts = experts, .chunk_tokens = chunk};
  shape.receive_rows = std::min(rows, shape.worst_rows());
  return shape;
}

TEST(ExchangeShape, ChunksCoverTheTokens) {
  const ExchangeShape shape = shape_of(2, 20, 4, 16, 7, 1000);
  ASSERT_EQ(shape.chunks(), 3);
  EXPECT_EQ(shape.chunk_size(0), 7);
  EXPECT_EQ(shape.chunk_begin(2), 14);
  EXPECT_EQ(shape.chunk_size(2), 6);
}

// A token cannot choose an expert twice: with few experts an owner, not all its choices can meet there.
TEST(ExchangeShape, WorstCaseKnowsThatChoicesDiffer) {
  EXPECT_EQ(shape_of(4, 10, 4, 64, 10, 1 << 20).worst_rows(), 4 * 10 * 4);
  EXPECT_EQ(shape_of(8, 10, 4, 16, 10, 1 << 20).worst_rows(), 8 * 10 * 2);
}

TEST(ExchangeShape, RoundsHoldTheWorstCase) {
  EXPECT_EQ(shape_of(4, 10, 4, 64, 10, 160).rounds(), 1);
  EXPECT_EQ(shape_of(4, 10, 4, 64, 10, 159).rounds(), 2);
  EXPECT_EQ(shape_of(4, 10, 4, 64, 10, 1).rounds(), 160);
}

// The last chunk is what is left.
TEST(ExchangeShape, ExpectedRowsAddUpToAnEvenShare) {
  for (const int64_t chunk : {10, 7, 64}) {
    for (const int64_t receive_rows : {30, 9, 1000}) {
      const ExchangeShape shape = shape_of(4, 64, 4, 64, chunk, receive_rows);
      int64_t rows = 0;
      for (int q = 0; q < shape.chunks(); ++q) {
        for (int round = 0; round < shape.rounds(); ++round) rows += shape.expected_rows(q, round);
      }
      EXPECT_EQ(rows, 64 * 4) << chunk << " " << receive_rows;
    }
  }
}

// A round is kept where it ends within the capacity, whatever lies behind it.
TEST(ExchangeShape, KeepsRoundsUpToTheCapacity) {
  ExchangeShape shape = shape_of(2, 20, 2, 8, 15, 20);  // chunks of 15 and 5 tokens: at most 60 and 20 rows at an owner, three rounds
  shape.retain_rows = 32;
  EXPECT_EQ(shape.kept_rows(0, 0), 20);
  EXPECT_EQ(shape.kept_rows(0, 1), 12);
  EXPECT_EQ(shape.kept_rows(0, 2), 0);
  EXPECT_EQ(shape.kept_rows(1, 0), 20);
  EXPECT_EQ(shape.kept_rows(1, 1), 0);
  const std::vector<int64_t> counts{20, 10, 13, 17};  // owner 0: 33 rows, owner 1: 27
  EXPECT_TRUE(is_kept(shape, counts, 0, 0, 0));
  EXPECT_FALSE(is_kept(shape, counts, 0, 0, 1));
  EXPECT_TRUE(is_kept(shape, counts, 1, 0, 1));
  EXPECT_TRUE(is_kept(shape, counts, 1, 0, 2)) << "no rows";
}

TEST(CountRows, SumsOwnersOfContiguousExperts) {
  const std::vector<int32_t> by_expert{1, 2, 3, 4, 0, 0};
  std::vector<int64_t> by_owner(3);
  count_rows(by_expert, by_owner);
  EXPECT_EQ(by_owner, (std::vector<int64_t>{3, 7, 0}));
}

TEST(PossibleRanks, AreTheDivisors) { EXPECT_EQ(possible_ranks(12, 8), "1, 2, 3, 4, 6"); }

// Checks one chunk: every row of every source reaches its owner once, in rounds that fill receive buffers from 0 without gaps.
void check_chunk(const ExchangeShape& shape, const std::vector<int64_t>& counts) {
  const int ranks = shape.ranks;
  std::vector<std::vector<int>> times_sent(ranks);
  for (int source = 0; source < ranks; ++source) {
    times_sent[source].assign(std::accumulate(counts.begin() + source * ranks, counts.begin() + (source + 1) * ranks, int64_t{0}), 0);
  }
  for (int round = 0; round < shape.rounds(); ++round) {
    for (int owner = 0; owner < ranks; ++owner) {
      int64_t filled = 0;
      for (int source = 0; source < ranks; ++source) {
        const Parcel part = parcel(shape, counts, source, owner, round);
        ASSERT_GE(part.rows, 0);
        if (part.rows == 0) continue;
        EXPECT_EQ(part.at, filled) << "sources lie one after another";
        filled += part.rows;
        const int64_t first = std::accumulate(counts.begin() + source * ranks, counts.begin() + source * ranks + owner, int64_t{0});
        ASSERT_GE(part.from, first);
        ASSERT_LE(part.from + part.rows, first + counts[source * ranks + owner]) << "rows of another owner";
        for (int64_t row = part.from; row < part.from + part.rows; ++row) ++times_sent[source][row];
      }
      EXPECT_LE(filled, shape.receive_rows);
      EXPECT_EQ(filled, rows_received(shape, counts, owner, round));
    }
  }
  for (const std::vector<int>& rows : times_sent) {
    for (const int times : rows) EXPECT_EQ(times, 1);
  }
}

TEST(Parcels, ConserveRowsOfRandomRouters) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = 1 << random() % 4;
    const int64_t experts = ranks * (1 + random() % 6), top_k = 1 + random() % std::min<int64_t>(experts, 8), chunk = 1 + random() % 20;
    const ExchangeShape shape = shape_of(ranks, chunk, top_k, experts, chunk, 1 + random() % 40);
    // Tokens that choose distinct experts, from evenly to all alike.
    const bool skewed = trial % 3 == 0;
    std::vector<int64_t> counts(ranks * ranks, 0);
    for (int source = 0; source < ranks; ++source) {
      std::vector<int32_t> by_expert(experts, 0);
      for (int64_t token = 0; token < chunk; ++token) {
        std::vector<int64_t> choices(experts);
        std::iota(choices.begin(), choices.end(), 0);
        if (!skewed) std::shuffle(choices.begin(), choices.end(), random);
        for (int64_t k = 0; k < top_k; ++k) ++by_expert[choices[k]];
      }
      count_rows(by_expert, {counts.data() + source * ranks, static_cast<size_t>(ranks)});
    }
    check_chunk(shape, counts);
  }
}

TEST(Parcels, OneOwnerTakesAll) { check_chunk(shape_of(4, 9, 2, 8, 9, 11), {0, 18, 0, 0, 0, 18, 0, 0, 0, 18, 0, 0, 0, 18, 0, 0}); }
TEST(Parcels, OnlyOneSourceHasRows) { check_chunk(shape_of(2, 5, 2, 4, 5, 3), {3, 7, 0, 0}); }

}  // namespace
}  // namespace oom::ep
