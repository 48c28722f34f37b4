#include "data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace oom::data {
namespace {

std::vector<int64_t> order(int64_t count, uint64_t seed, int64_t epoch) {
  const Permutation permutation(count, seed, epoch);
  std::vector<int64_t> result(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) result[static_cast<size_t>(i)] = permutation(i);
  return result;
}

TEST(Permutation, TakesEveryElementOnce) {
  for (const int64_t count : {1, 2, 3, 5, 16, 17, 255, 256, 257, 1000, 4097, 65537}) {
    auto elements = order(count, 7, 3);
    std::sort(elements.begin(), elements.end());
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(elements[static_cast<size_t>(i)], i) << count;
  }
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  EXPECT_EQ(order(100, 1, 0), order(100, 1, 0));
  EXPECT_NE(order(100, 1, 0), order(100, 2, 0));
  EXPECT_NE(order(100, 1, 0), order(100, 1, 1));
  EXPECT_NE(order(100, 1, 1), order(100, 2, 0));
}

// Computed by an independent program (tests/unit/core/data/permutation_reference.py): a resumed run must meet the order it began with.
TEST(Permutation, KeepsItsOrderForEver) {
  EXPECT_EQ(order(10, 1, 0), (std::vector<int64_t>{9, 1, 3, 7, 6, 4, 0, 5, 2, 8}));
  const Permutation large(int64_t{1} << 40, 1234, 5);
  EXPECT_EQ(large(0), 859489897417);
  EXPECT_EQ(large((int64_t{1} << 40) - 1), 915141066079);
}

TEST(Permutation, AllOrdersOfThreeAreAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> seen;
  constexpr int kEpochs = 12000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++seen[order(3, 42, epoch)];
  ASSERT_EQ(seen.size(), 6u);
  const double deviation = std::sqrt(kEpochs * (1.0 / 6) * (5.0 / 6));
  for (const auto& [which, times] : seen) EXPECT_NEAR(times, kEpochs / 6.0, 5 * deviation);
}

TEST(Permutation, NeighboursAreScattered) {
  // The mean distance of neighbours in a random order of n is n / 3.
  const auto elements = order(10007, 9, 0);
  double distance = 0;
  for (size_t i = 1; i < elements.size(); ++i) distance += std::abs(static_cast<double>(elements[i] - elements[i - 1]));
  EXPECT_NEAR(distance / 10006, 10007 / 3.0, 100);
}

}  // namespace
}  // namespace oom::data
