#include "oom/ops/grouped_gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdlib>
#include <limits>

#include "operand.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::expect_identical;
using testing::expect_near;
using testing::fp64;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Row counts a call must take: ragged, empty experts at both ends, everything to one expert, one row in all, none.
const std::vector<std::vector<int64_t>> kCounts = {{3, 17, 1, 40}, {0, 5, 0, 9}, {7, 0, 3, 0}, {0, 0, 61, 0}, {0, 0, 0, 1}, {0, 0, 0, 0}, {130, 1, 0, 260}};

class GroupedGemmTest : public testing::PlacedTest {
 protected:
  void expect_plain_loops();
  double rounding() const { return bf16() ? 4e-3 : 2e-6; }
  static std::vector<int64_t> ends_of(const std::vector<int64_t>& counts) {
    std::vector<int64_t> ends;
    for (int64_t total = 0; int64_t count : counts) ends.push_back(total += count);
    return ends;
  }
};

void GroupedGemmTest::expect_plain_loops() {
  const int64_t n = 48, k = 64;
  for (const auto& counts : kCounts) {
    const std::vector<int64_t> ends = ends_of(counts);
    const int64_t experts = static_cast<int64_t>(counts.size()), total = ends.back(), rows = total + 5;
    const at::Tensor offsets = int32(ends), weights = random({experts, n, k});
    at::Tensor x = random({rows, k}), dy = random({rows, n});
    x.narrow(0, total, 5).fill_(kNan);  // what lies past the last expert is never read
    dy.narrow(0, total, 5).fill_(kNan);
    at::Tensor y64 = at::zeros({rows, n}, at::kDouble), dx64 = at::zeros({rows, k}, at::kDouble), dw64 = at::zeros({experts, n, k}, at::kDouble);
    for (int64_t expert = 0, begin = 0; expert < experts; begin = ends[expert++]) {
      const int64_t length = ends[expert] - begin;
      const at::Tensor x_e = fp64(x.narrow(0, begin, length)), dy_e = fp64(dy.narrow(0, begin, length)), w_e = fp64(weights[expert]);
      y64.narrow(0, begin, length).copy_(at::matmul(x_e, w_e.t()));
      dx64.narrow(0, begin, length).copy_(at::matmul(dy_e, w_e));
      dw64[expert].copy_(at::matmul(dy_e.t(), x_e));
    }
    expect_near(grouped_forward(x, weights, offsets), y64, rounding(), "y");
    expect_near(grouped_dgrad(dy, weights, offsets), dx64, rounding(), "dx");
    const at::Tensor dw = grouped_wgrad(dy, x, offsets);
    expect_near(dw, dw64, rounding(), "dW");
    for (int64_t expert = 0; expert < experts; ++expert)
      if (counts[expert] == 0) expect_identical(dw[expert], at::zeros_like(dw[expert]), "dW of an expert without rows");
    for (const at::ScalarType sink_type : {at::kFloat, GetParam().dtype}) {
      const at::Tensor sink = at::full({experts, n, k}, kNan, options().dtype(sink_type));
      grouped_wgrad_into({sink, false}, dy, x, offsets);
      expect_near(sink, dw64, rounding(), "overwritten sink");
      grouped_wgrad_into({sink, true}, dy, x, offsets);
      expect_near(sink, dw64 * 2, rounding(), "sink added to");
    }
  }
}

TEST_P(GroupedGemmTest, AgreesWithPlainLoopsInFp64) { expect_plain_loops(); }

TEST_P(GroupedGemmTest, SlicesOfRowsAddUpInAnFp32Sink) {
  const at::Tensor x = random({90, 32}), dy = random({90, 16});
  const at::Tensor whole = at::zeros({2, 16, 32}, options().dtype(at::kFloat)), parts = at::zeros_like(whole);
  grouped_wgrad_into({whole, true}, dy, x, int32({30, 90}));
  grouped_wgrad_into({parts, true}, dy.narrow(0, 0, 50), x.narrow(0, 0, 50), int32({30, 50}));
  grouped_wgrad_into({parts, true}, dy.narrow(0, 50, 40), x.narrow(0, 50, 40), int32({0, 40}));
  expect_near(parts, fp64(whole), bf16() ? 4e-3 : 2e-6, "two slices against one");
}

TEST_P(GroupedGemmTest, ManyEmptyExpertsStayZeroBesideNanInTheCache) {
  const int64_t experts = 256, n = 64, k = 128, filled = 52, each = 24;
  { const at::Tensor poison = at::full({experts * n * k * 4}, kNan, options()); }  // freed at once: the results reuse it
  std::vector<int64_t> counts(experts, 0);
  for (int64_t i = 0; i < filled; ++i) counts[(i * 5 + 3) % experts] = each;
  const at::Tensor offsets = int32(ends_of(counts)), x = random({filled * each, k}), dy = random({filled * each, n});
  const at::Tensor dw = grouped_wgrad(dy, x, offsets);
  for (int64_t expert = 0; expert < experts; ++expert) {
    if (counts[expert] == 0)
      expect_identical(dw[expert], at::zeros_like(dw[expert]), "empty expert");
    else
      EXPECT_GT(fp64(dw[expert]).abs().min().item<double>(), 0) << "expert " << expert;
  }
}

TEST_P(GroupedGemmTest, WidthsThatNoKernelTakesStillMultiply) {
  const at::Tensor x = random({11, 20}), weights = random({2, 6, 20});
  const at::Tensor y = grouped_forward(x, weights, int32({4, 11}));
  expect_near(y.narrow(0, 4, 7), at::matmul(fp64(x.narrow(0, 4, 7)), fp64(weights[1]).t()), rounding(), "second expert");
}

TEST_P(GroupedGemmTest, WrongOffsetsAreRefused) {
  const at::Tensor x = random({8, 16}), weights = random({2, 8, 16});
  EXPECT_THROW(grouped_forward(x, weights, int32({4})), Error);
  EXPECT_THROW(grouped_forward(x, weights, int32({4, 8}).to(at::kLong)), Error);
  if (GetParam().device == c10::DeviceType::CPU) {
    EXPECT_THROW(grouped_forward(x, weights, int32({9, 8})), Error);
  }
}

/// Our own tiles on a GPU where LibTorch's kernel would be taken.
class GroupedGemmTilesTest : public GroupedGemmTest {
 protected:
  void SetUp() override {
    GroupedGemmTest::SetUp();
    setenv("OOM_GROUPED_GEMM", "tiles", 1);
  }
  void TearDown() override { unsetenv("OOM_GROUPED_GEMM"); }
};

TEST_P(GroupedGemmTilesTest, AgreesWithPlainLoopsInFp64) { expect_plain_loops(); }

// Several tiles along every index, none of them whole.
TEST_P(GroupedGemmTilesTest, AgreesAcrossTiles) {
  const int64_t n = 264, k = 200;
  const at::Tensor offsets = int32({300, 300, 441}), weights = random({3, n, k}), x = random({441, k}), dy = random({441, n});
  at::Tensor y64 = at::zeros({441, n}, at::kDouble), dx64 = at::zeros({441, k}, at::kDouble), dw64 = at::zeros({3, n, k}, at::kDouble);
  for (const auto& [expert, begin, length] : {std::array<int64_t, 3>{0, 0, 300}, {2, 300, 141}}) {
    const at::Tensor x_e = fp64(x.narrow(0, begin, length)), dy_e = fp64(dy.narrow(0, begin, length)), w_e = fp64(weights[expert]);
    y64.narrow(0, begin, length).copy_(at::matmul(x_e, w_e.t()));
    dx64.narrow(0, begin, length).copy_(at::matmul(dy_e, w_e));
    dw64[expert].copy_(at::matmul(dy_e.t(), x_e));
  }
  expect_near(grouped_forward(x, weights, offsets), y64, rounding(), "y");
  expect_near(grouped_dgrad(dy, weights, offsets), dx64, rounding(), "dx");
  expect_near(grouped_wgrad(dy, x, offsets), dw64, rounding(), "dW");
}

INSTANTIATE_TEST_SUITE_P(Places, GroupedGemmTilesTest, ::testing::Values(testing::Place{c10::DeviceType::CUDA, at::kBFloat16}), testing::place_name);

INSTANTIATE_TEST_SUITE_P(Places, GroupedGemmTest, all_places(), testing::place_name);

TEST(GroupedGemmBackendTest, IsChosenByTypeDeviceAndShape) {
  GroupedGemmProblem problem{.device = c10::DeviceType::CUDA, .dtype = at::kBFloat16, .compute_capability = 90, .experts = 256, .n = 1024, .k = 2048};
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kGroupedKernel);
  EXPECT_EQ(choose_grouped_gemm_backend(problem, GroupedGemmBackend::kTensorCoreTiles), GroupedGemmBackend::kTensorCoreTiles);
  problem.experts = 1024;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kTensorCoreTiles);
  problem.experts = 256;
  problem.compute_capability = 80;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kTensorCoreTiles);
  problem.compute_capability = 75;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kLoopOverExperts);
  problem.compute_capability = 90;
  problem.dtype = at::kFloat;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kLoopOverExperts);
  problem.dtype = at::kBFloat16;
  problem.k = 2044;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kLoopOverExperts);
  problem.device = c10::DeviceType::CPU;
  EXPECT_EQ(choose_grouped_gemm_backend(problem), GroupedGemmBackend::kCpu);
}

}  // namespace
}  // namespace oom::ops
