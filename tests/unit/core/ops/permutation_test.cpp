#include "oom/ops/permutation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class PermutationTest : public PoisonedTest {
 protected:
  at::Tensor random_indices(int64_t tokens, int64_t top_k, int64_t experts, uint64_t seed = 3) {
    auto generator = at::detail::createCPUGenerator(seed);
    return at::randint(0, experts, {tokens, top_k}, generator, at::TensorOptions().dtype(at::kInt)).to(options().dtype(at::kInt));
  }
  static std::vector<int32_t> values(const at::Tensor& x) {
    const at::Tensor flat = x.to(at::kCPU).contiguous();
    return {flat.data_ptr<int32_t>(), flat.data_ptr<int32_t>() + flat.numel()};
  }
  void check(const at::Tensor& indices, int64_t experts) {
    const std::vector<int32_t> expert = values(indices);
    std::vector<int32_t> order(expert.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return expert[static_cast<size_t>(a)] < expert[static_cast<size_t>(b)]; });
    std::vector<int32_t> token_of, row_of(expert.size()), counts(static_cast<size_t>(experts), 0), ends;
    for (size_t row = 0; row < order.size(); ++row) {
      token_of.push_back(order[row] / static_cast<int32_t>(indices.size(1)));
      row_of[static_cast<size_t>(order[row])] = static_cast<int32_t>(row);
    }
    for (const int32_t e : expert) ++counts[static_cast<size_t>(e)];
    std::partial_sum(counts.begin(), counts.end(), std::back_inserter(ends));
    const Permutation p = make_permutation(indices, experts);
    EXPECT_EQ(values(p.counts), counts);
    EXPECT_EQ(values(p.ends), ends);
    EXPECT_EQ(values(p.token_of), token_of);
    EXPECT_EQ(values(p.row_of), row_of);
    EXPECT_EQ(p.row_of.sizes(), indices.sizes());
  }
};

TEST_P(PermutationTest, SortsByExpertThenTokenThenSlot) {
  check(random_indices(100, 8, 16), 16);
  check(random_indices(5000, 8, 256), 256);
  check(random_indices(3001, 3, 1024), 1024);
  check(random_indices(1, 1, 1), 1);
  check(random_indices(300000, 8, 129), 129);
}

TEST_P(PermutationTest, AllTokensToOneExpertAndNoneToOthers) {
  check(at::full({4000, 2}, 7, options().dtype(at::kInt)), 200);
  check(at::full({4000, 1}, 0, options().dtype(at::kInt)), 8);
  check(at::full({33, 1}, 7, options().dtype(at::kInt)), 8);
}

TEST_P(PermutationTest, NoTokens) {
  const Permutation p = make_permutation(at::empty({0, 4}, options().dtype(at::kInt)), 8);
  EXPECT_EQ(values(p.counts), std::vector<int32_t>(8, 0));
  EXPECT_EQ(values(p.ends), std::vector<int32_t>(8, 0));
  EXPECT_EQ(p.token_of.numel(), 0);
  EXPECT_EQ(gather_rows(random({3, 8}), p.token_of).sizes(), (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(combine(random({0, 8}), p.row_of).sizes(), (std::vector<int64_t>{0, 8}));
}

TEST_P(PermutationTest, AnExpertThatDoesNotExistIsNamed) {
  if (GetParam().device != c10::DeviceType::CPU) GTEST_SKIP() << "checked on the CPU alone";
  EXPECT_THROW(make_permutation(int32({0, 8}).view({1, 2}), 8), Error);
}

TEST_P(PermutationTest, GatherAndCombineAreInverseUpToTheCount) {
  for (const int64_t width : {64, 2048, 5, 2056}) {
    const at::Tensor indices = random_indices(70, 4, 12);
    const Permutation p = make_permutation(indices, 12);
    const at::Tensor x = random({70, width});
    const at::Tensor rows = gather_rows(x, p.token_of);
    expect_identical(rows.to(at::kCPU), at::index_select(x.to(at::kCPU), 0, p.token_of.to(at::kCPU)), "gathered rows");
    expect_rounded(combine(rows, p.row_of), fp64(x) * 4, "sum of four equal rows");
  }
}

TEST_P(PermutationTest, CombineAddsWeightedRowsSharedBranchAndResidual) {
  for (const int64_t width : {32, 2048, 7}) {
    const int64_t tokens = 45, top_k = 3;
    const Permutation p = make_permutation(random_indices(tokens, top_k, 9), 9);
    const at::Tensor rows = random({tokens * top_k, width}), residual = random({tokens, width}), shared = random({tokens, width});
    const at::Tensor weights = random({tokens, top_k}).to(at::kFloat), scale = random({tokens});
    const at::Tensor row_of = p.row_of.to(at::kCPU).to(at::kLong).view({-1});
    const at::Tensor sum = (fp64(rows).index_select(0, row_of).view({tokens, top_k, width}) * fp64(weights).unsqueeze(2)).sum(1);
    expect_rounded(combine(rows, p.row_of, {weights, {}, {}, {}}), sum, "weighted sum");
    expect_rounded(combine(rows, p.row_of, {weights, residual, {}, {}}), sum + fp64(residual), "with residual");
    expect_rounded(combine(rows, p.row_of, {weights, {}, shared, {}}), sum + fp64(shared), "with a shared branch");
    const at::Tensor all = sum + fp64(residual) + fp64(scale).unsqueeze(1) * fp64(shared);
    expect_rounded(combine(rows, p.row_of, {weights, residual, shared, scale}), all, "with everything");
    expect_rounded(combine(rows, p.row_of, {weights, residual, shared, scale.to(at::kFloat)}), all, "with an FP32 scale");
    at::Tensor y = residual.clone();
    combine_out(y, rows, p.row_of, {weights, y, shared, scale});
    expect_rounded(y, all, "in place of the residual");
  }
}

TEST_P(PermutationTest, ValuesOfChoicesTravelBothWays) {
  const Permutation p = make_permutation(random_indices(1000, 4, 30), 30);
  const at::Tensor choices = random({1000, 4}).to(at::kFloat);
  const at::Tensor rows = choices_to_rows(choices, p.row_of);
  expect_identical(rows_to_choices(rows, p.row_of), choices, "there and back");
  EXPECT_EQ(rows[p.row_of[17][2].item<int64_t>()].item<float>(), choices[17][2].item<float>());
}

TEST_P(PermutationTest, CopiesRowsByEitherIndex) {
  for (const int64_t width : {64, 3, 1}) {
    const at::Tensor x = random({10, width});
    const at::Tensor out = at::full({6, width}, 9.0, options());
    copy_rows(out, x, int32({3, -1, 9}), int32({5, 0, -1}));
    expect_identical(out[5], x[3], "row 3 to row 5");
    EXPECT_EQ(out[0].abs().sum().item<float>(), 0.0f) << "a negative source writes zeros";
    EXPECT_EQ((out.narrow(0, 1, 4) - 9.0).abs().sum().item<float>(), 0.0f) << "rows that nobody named";
    const at::Tensor spread = at::full({10, width}, 9.0, options());
    copy_rows(spread, out, {}, int32({9, 8, 7, 6, 5, 4}));
    expect_identical(spread[4], x[3], "scatter alone");
    const at::Tensor wide = random({10, 2 * width});
    const at::Tensor part = at::empty({2, width}, options());
    copy_rows(part, wide.narrow(1, width, width), int32({1, 2}));
    expect_identical(part, wide.narrow(1, width, width).narrow(0, 1, 2).contiguous(), "rows of a strided view");
  }
  const at::Tensor indices = random_indices(7, 3, 100), copied = at::empty({2, 3}, options().dtype(at::kInt));
  copy_rows(copied, indices, int32({6, 0}));
  expect_identical(copied[0], indices[6], "integers");
}

INSTANTIATE_TEST_SUITE_P(Places, PermutationTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
