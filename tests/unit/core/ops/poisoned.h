/// Tests whose uninitialised tensors hold NaN, and closeness within one rounding.
#pragma once

#include <algorithm>
#include <cmath>

#include "operand.h"

namespace oom::ops::testing {

/// Every at::empty of the body, inside operators too, starts as NaN (integers: the largest value): what an operator leaves unwritten fails a comparison.
class PoisonedTest : public PlacedTest {
 protected:
  void SetUp() override {
    PlacedTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
  at::TensorOptions fp32() const { return options().dtype(at::kFloat); }
};

/// Each element within one rounding of its type of the reference, and `slack` (FP32 arithmetic before it) of the element and of the largest element.
inline void expect_rounded(const at::Tensor& actual, const at::Tensor& reference, const std::string& what, double slack = 1e-6) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), reference.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor got = fp64(actual).contiguous().view({-1});
  const at::Tensor want = fp64(reference).contiguous().view({-1});
  const double* g = got.data_ptr<double>();
  const double* w = want.data_ptr<double>();
  double largest = 0;
  for (int64_t i = 0; i < want.numel(); ++i) largest = std::max(largest, std::abs(w[i]));
  for (int64_t i = 0; i < want.numel(); ++i) {
    // Half a unit in the last place of BF16: 8 significant bits.
    const double rounding = actual.scalar_type() == at::kBFloat16 && w[i] != 0 ? std::ldexp(1.0, std::ilogb(w[i]) - 8) : 0.0;
    ASSERT_LE(std::abs(g[i] - w[i]), rounding + slack * (std::abs(w[i]) * 2 + largest)) << what << ": element " << i << " of " << want.numel()
                                                                                       << " is " << g[i] << ", not " << w[i];
  }
}

}  // namespace oom::ops::testing
