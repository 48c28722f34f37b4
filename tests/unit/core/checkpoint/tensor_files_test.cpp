#include "checkpoint/tensor_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "oom/error.h"

namespace oom::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(TensorFiles, SpreadsInOrderWithinTheBound) {
  std::vector<TensorInfo> tensors;
  for (const int64_t bytes : {4, 4, 12, 4, 8, 0}) tensors.push_back({cat("t", tensors.size()), Dtype::kU8, {bytes}});
  EXPECT_THAT(spread_over_files(tensors, 8), ElementsAre(Pair(0, 2), Pair(2, 3), Pair(3, 4), Pair(4, 6)));
  EXPECT_THAT(spread_over_files(tensors, 1000), ElementsAre(Pair(0, 6)));
  EXPECT_THAT(spread_over_files({}, 8), ElementsAre());
}

TEST(TensorFiles, ParallelWorkIsDoneOnceEachAndFailuresComeOut) {
  for (const int threads : {1, 4}) {
    std::vector<std::atomic<int>> done(100);
    for_each_parallel(done.size(), threads, [&](size_t i) { ++done[i]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
    std::atomic<int> begun{0};
    EXPECT_THROW(for_each_parallel(1000000, threads, [&](size_t i) {
                   ++begun;
                   if (i == 3) throw FileError("full");
                 }),
                 FileError);
    EXPECT_LT(begun, 1000000);
  }
  for_each_parallel(0, 4, [](size_t) { FAIL(); });
}

}  // namespace
}  // namespace oom::checkpoint
