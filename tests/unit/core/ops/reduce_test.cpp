#include "oom/ops/reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class ReduceTest : public PoisonedTest {
 protected:
  at::Tensor zero_total() const { return at::zeros({1}, options().dtype(at::kDouble)); }
};

TEST_P(ReduceTest, SumsOfSquaresAddUp) {
  const at::Tensor total = zero_total(), sum = zero_total();
  double expected = 0, expected_sum = 0;
  for (const int64_t size : {1, 7, 4096, 100003, 0, 3000000}) {
    const at::Tensor x = random({size});
    add_sum_of_squares(total, x);
    add_sum(sum, x);
    expected += fp64(x).pow(2).sum().item<double>();
    expected_sum += fp64(x).sum().item<double>();
  }
  EXPECT_NEAR(total.item<double>() / expected, 1.0, 1e-12);
  EXPECT_NEAR(sum.item<double>(), expected_sum, 1e-7);
}

TEST_P(ReduceTest, SumsOfSquaresRepeatBitForBit) {
  const at::Tensor x = random({1234567}), first = zero_total(), second = zero_total();
  add_sum_of_squares(first, x);
  add_sum_of_squares(second, x);
  expect_identical(first, second, "total");
}

TEST_P(ReduceTest, TheTotalIsFiniteExactlyWhenEveryElementIs) {
  at::Tensor x = random({50001});
  x[4].fill_(3e38);
  const at::Tensor total = zero_total();
  add_sum_of_squares(total, x);
  EXPECT_TRUE(std::isfinite(total.item<double>())) << "the square of a large number";
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")}) {
    at::Tensor y = random({50001});
    y[50000].fill_(bad);
    const at::Tensor broken = zero_total();
    add_sum_of_squares(broken, y);
    EXPECT_FALSE(std::isfinite(broken.item<double>())) << bad;
  }
}

TEST_P(ReduceTest, AccumulatesAndSumsPartialsInOrder) {
  for (const int64_t size : {1000, 13, 0}) {
    const at::Tensor destination = random({size}).to(at::kFloat), source = random({size});
    const at::Tensor expected = destination + source.to(at::kFloat);
    accumulate(destination, source);
    expect_identical(destination, expected, "one FP32 sum");
    std::vector<at::Tensor> partials;
    at::Tensor in_order = at::zeros({size}, fp32());
    for (int i = 0; i < 5; ++i) {
      partials.push_back(random({size}));
      in_order = i == 0 ? partials[0].to(at::kFloat) : in_order + partials.back().to(at::kFloat);
    }
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor out = at::empty({size}, options().dtype(type));
      sum_partials(out, partials);
      expect_identical(out, in_order.to(type), "five partials, one rounding");
    }
    sum_partials(partials[0], partials);
    expect_identical(partials[0], in_order.to(GetParam().dtype), "into the first of them");
  }
}

TEST_P(ReduceTest, ConvertsToNearestEven) {
  const at::Tensor x = random({1003}), there = at::empty({1003}, options().dtype(at::kBFloat16)), back = at::empty({1003}, fp32());
  convert(there, x);
  expect_identical(there, x.to(at::kBFloat16), "to BF16");
  convert(back, there);
  expect_identical(back, there.to(at::kFloat), "to FP32");
  const at::Tensor special = at::zeros({4}, fp32());
  special[0].fill_(1.0 + 1.0 / 256);  // halfway: to the even neighbour, 1
  special[1].fill_(1.0 + 3.0 / 256);  // halfway: to the even neighbour, 1 + 2/128
  special[2].fill_(std::numeric_limits<double>::infinity());
  special[3].fill_(std::nan(""));
  const at::Tensor narrow = at::empty({4}, options().dtype(at::kBFloat16));
  convert(narrow, special);
  EXPECT_EQ(narrow[0].item<float>(), 1.0f);
  EXPECT_EQ(narrow[1].item<float>(), 1.0f + 2.0f / 128);
  EXPECT_TRUE(std::isinf(narrow[2].item<float>()));
  EXPECT_TRUE(std::isnan(narrow[3].item<float>()));
}

TEST_P(ReduceTest, PoisonShows) {
  const at::Tensor x = random({9}), i = int32({1, 2});
  poison(x);
  poison(i);
  EXPECT_TRUE(x.isnan().all().item<bool>());
  EXPECT_EQ(i[1].item<int32_t>(), std::numeric_limits<int32_t>::min());
}

INSTANTIATE_TEST_SUITE_P(Places, ReduceTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
