#include "oom/ops/expert_counts.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class ExpertCountsTest : public PoisonedTest {};

TEST_P(ExpertCountsTest, CountsAreAddedToWhatIsThere) {
  for (const auto& [tokens, experts, top_k] : {std::tuple<int64_t, int64_t, int64_t>{1, 8, 2}, {33, 128, 8}, {70000, 128, 8}, {9, 1024, 16}}) {
    const at::Tensor indices = at::randint(experts, {tokens, top_k}, options().dtype(at::kInt));
    const at::Tensor counts = at::zeros({experts}, options().dtype(at::kLong)) + 5;
    add_expert_counts(counts, indices);
    add_expert_counts(counts, indices);
    const at::Tensor wanted = at::bincount(indices.to(at::kCPU).flatten().to(at::kLong), {}, experts) * 2 + 5;
    expect_identical(counts.to(at::kCPU), wanted, "counts");
  }
}

TEST_P(ExpertCountsTest, NoTokensChangeNothing) {
  const at::Tensor counts = at::zeros({8}, options().dtype(at::kLong));
  add_expert_counts(counts, at::zeros({0, 2}, options().dtype(at::kInt)));
  EXPECT_EQ(counts.sum().item<int64_t>(), 0);
}

TEST_P(ExpertCountsTest, OperandsAreChecked) {
  const at::Tensor counts = at::zeros({8}, options().dtype(at::kLong));
  EXPECT_THROW(add_expert_counts(counts, at::zeros({4}, options().dtype(at::kLong))), Error);
  EXPECT_THROW(add_expert_counts(at::zeros({2, 4}, options().dtype(at::kLong)), at::zeros({4}, options().dtype(at::kInt))), Error);
}

INSTANTIATE_TEST_SUITE_P(Places, ExpertCountsTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
