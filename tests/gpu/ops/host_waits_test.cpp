// What makes the host wait for the GPU keeps it from launching ahead: LibTorch can be told to refuse such calls.
#include <ATen/ops/arange.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "oom/ops/rotary.h"

namespace oom::ops {
namespace {

class RefuseWaits {
 public:
  RefuseWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~RefuseWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

TEST(HostWaitsTest, RotaryTableNeedsNone) {
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
  const RotaryFrequencies frequencies = rotary_frequencies({.theta = 1e6, .head_dim = 512});
  const at::Tensor positions = at::arange(100, at::device(at::kCUDA).dtype(at::kInt));
  RotaryTable table;
  {
    const RefuseWaits refuse;
    EXPECT_THROW((void)positions.cpu(), std::exception);
    EXPECT_NO_THROW(table = rotary_table(frequencies, positions, at::kFloat));
  }
  const RotaryTable expected = rotary_table(frequencies, positions.cpu(), at::kFloat);
  EXPECT_TRUE(table.cosine.cpu().allclose(expected.cosine, 1e-5, 1e-5));
  EXPECT_TRUE(table.sine.cpu().allclose(expected.sine, 1e-5, 1e-5));
}

}  // namespace
}  // namespace oom::ops
