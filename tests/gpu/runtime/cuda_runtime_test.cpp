// Several runs in one process, as calibration and comparison make them: nothing of one is left to the next. Temporaries under a cap.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "oom/error.h"
#include "runtime/cuda_runtime.h"
#include "runtime/cuda_temporaries.h"

namespace oom::runtime {
namespace {

bool no_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}

// As the stages of a rank's compute lane run.
void on_compute_lane(const std::function<void()>& work) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(lane_stream(0, Lane::kCompute), 0));
  work();
}

at::Tensor bytes(int64_t count) { return at::empty({count}, at::device(at::kCUDA).dtype(at::kByte)); }

TEST(CudaRuntimeTest, LeavesNeitherMemoryNorCapToTheNextRun) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kBytes = int64_t{4} << 30;
  int64_t first = 0;
  {
    const auto device = make_cuda_runtime(1);
    device->cap_temporaries(0, kBytes, kBytes);
    on_compute_lane([&] { (void)bytes(kBytes); });
    EXPECT_GE(device->peak_bytes().at(0), kBytes);
    first = device->fixed_bytes().at(0);
  }
  const auto device = make_cuda_runtime(1);
  EXPECT_LT(device->fixed_bytes().at(0), first + (int64_t{64} << 20));
  EXPECT_LT(device->peak_bytes().at(0), first + (int64_t{64} << 20));
  on_compute_lane([&] { EXPECT_NO_THROW((void)bytes(2 * kBytes)); });
}

TEST(CudaTemporariesTest, WhatIsFreeInPiecesServesALargeRequestAndWhatIsInUseKeepsItsValues) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kBlock = int64_t{64} << 20, kBlocks = 16;
  const auto device = make_cuda_runtime(1);
  device->cap_temporaries(0, kBlocks * kBlock + kBlock / 2, kBlocks * kBlock);
  on_compute_lane([&] {
    std::vector<at::Tensor> blocks;
    for (int64_t i = 0; i < kBlocks; ++i) blocks.push_back(at::full({kBlock}, i, at::device(at::kCUDA).dtype(at::kByte)));
    for (int64_t i = 0; i < kBlocks; i += 2) blocks[i].reset();
    const at::Tensor large = at::arange(6 * kBlock / 4, at::device(at::kCUDA).dtype(at::kInt));
    EXPECT_GE(cuda_temporaries(0).pool.waits, 1);
    EXPECT_EQ(large[-1].item<int>(), 6 * kBlock / 4 - 1);
    for (int64_t i = 1; i < kBlocks; i += 2) EXPECT_TRUE(at::equal(blocks[i], at::full({kBlock}, i, at::device(at::kCUDA).dtype(at::kByte)))) << i;
    EXPECT_THROW((void)bytes(3 * kBlock), Error);
  });
  device->end_step();
  const CudaTemporaries taken = cuda_temporaries(0);
  EXPECT_LE(taken.pool.peak_mapped, kBlocks * kBlock + kBlock / 2);
  EXPECT_EQ(taken.beside, 0);
}

}  // namespace
}  // namespace oom::runtime
