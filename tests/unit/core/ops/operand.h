/// Operands for tests of the matrix operators: reproducible random tensors, FP64 copies, and closeness against FP64.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace oom::ops::testing {

/// Where an operator runs and in which type.
struct Place {
  c10::DeviceType device;
  at::ScalarType dtype;
};

inline std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  return std::string(info.param.device == c10::DeviceType::CPU ? "Cpu" : "Cuda") + (info.param.dtype == at::kFloat ? "Fp32" : "Bf16");
}

inline auto all_places() {
  return ::testing::Values(Place{c10::DeviceType::CPU, at::kFloat}, Place{c10::DeviceType::CPU, at::kBFloat16},
                           Place{c10::DeviceType::CUDA, at::kFloat}, Place{c10::DeviceType::CUDA, at::kBFloat16});
}

/// A test whose body runs at every place; skips CUDA where no device is.
class PlacedTest : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device == c10::DeviceType::CUDA && !at::globalContext().hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  at::TensorOptions options() const { return at::TensorOptions().device(c10::Device(GetParam().device)).dtype(GetParam().dtype); }
  bool bf16() const { return GetParam().dtype == at::kBFloat16; }
  /// Standard normal values times `scale`, the same for every device; they are exact in the place's type.
  at::Tensor random(std::vector<int64_t> shape, double scale = 1.0) {
    auto generator = at::detail::createCPUGenerator(seed_++);
    return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).mul_(scale).to(options());
  }
  at::Tensor int32(const std::vector<int64_t>& values) const {
    return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(options().dtype(at::kInt));
  }

 private:
  uint64_t seed_ = 1;
};

/// The exact values on the CPU in FP64.
inline at::Tensor fp64(const at::Tensor& x) { return x.to(at::TensorOptions().device(c10::Device(c10::kCPU)).dtype(at::kDouble)); }

/// Largest difference of an element, over its own size plus the reference's root mean square: one rounding to BF16 makes at most 2^-8 = 0.0039.
/// Operands are of size one: a reference below kNothing is FP64's own rounding of an exact zero, and the difference itself counts.
inline constexpr double kNothing = 1e-12;
inline double distance(const at::Tensor& actual, const at::Tensor& reference) {
  if (reference.numel() == 0) return 0;
  const double scale = reference.to(at::kDouble).pow(2).mean().sqrt().item<double>();
  const at::Tensor exact = fp64(reference);
  const at::Tensor difference = at::abs(fp64(actual) - exact);
  return (scale < kNothing ? difference : difference / (at::abs(exact) + scale)).max().item<double>();
}

/// `actual`, computed in a place's type, against an FP64 reference; NaN fails.
inline void expect_near(const at::Tensor& actual, const at::Tensor& reference, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.sizes(), reference.sizes()) << what;
  EXPECT_LE(distance(actual, reference), tolerance) << what;
}

/// The same for results behind several roundings, where the worst element says little: the norm of the difference over the reference's norm. One
/// rounding to BF16 makes about 0.0017.
inline void expect_near_overall(const at::Tensor& actual, const at::Tensor& reference, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.sizes(), reference.sizes()) << what;
  const double norm = fp64(reference).norm().item<double>(), difference = (fp64(actual) - fp64(reference)).norm().item<double>();
  EXPECT_LE(norm == 0 ? difference : difference / norm, tolerance) << what;
}

inline void expect_identical(const at::Tensor& left, const at::Tensor& right, const std::string& what) {
  EXPECT_TRUE(left.equal(right)) << what << ": largest difference " << distance(left, right);
}

}  // namespace oom::ops::testing
