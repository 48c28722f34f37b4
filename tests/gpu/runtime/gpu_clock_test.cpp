#include "runtime/gpu_clock.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda_runtime.h"

namespace oom::runtime {
namespace {

// In a process of its own (a filter, or the first test of a program): calibration measures the clock before the first run takes the GPU's allocator.
TEST(GpuClock, IsMeasuredAndLeavesTheAllocatorToTheRun) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  const std::vector<ClockPoint> clock = measure_gpu_clock(0);
  ASSERT_FALSE(clock.empty());
  double share = 0;
  for (const ClockPoint& point : clock) {
    EXPECT_GT(point.share, share);
    share = point.share;
    EXPECT_GT(point.seconds, 0.5);
    EXPECT_LT(point.seconds, 1.1) << "pauses do not make a GPU slower";
  }
  EXPECT_EQ(clock.back().share, 1);
  EXPECT_EQ(clock.back().seconds, 1);
  const auto device = make_cuda_runtime(1);
  device->cap_temporaries(0, int64_t{1} << 30, int64_t{1} << 30);
}

}  // namespace
}  // namespace oom::runtime
