// The grouped products for GPUs without LibTorch's kernel, from the very code that they would get, against plain loops in FP64.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "../../unit/core/ops/operand.h"
#include "ops/grouped_gemm_tiles.h"

namespace oom::ops {
namespace {

using testing::expect_near;
using testing::fp64;

class GroupedGemmCompute80Test : public testing::PlacedTest {};

TEST_P(GroupedGemmCompute80Test, AgreesWithPlainLoopsInFp64) {
  const int64_t outputs = 264, inputs = 200, experts = 5, total = 700;
  const std::vector<int64_t> ends{0, 130, 130, 131, total};
  const at::Tensor offsets = int32(ends), weights = random({experts, outputs, inputs}), x = random({total, inputs}), dy = random({total, outputs});
  at::Tensor y64 = at::zeros({total, outputs}, at::kDouble), dx64 = at::zeros({total, inputs}, at::kDouble), dw64 = at::zeros({experts, outputs, inputs}, at::kDouble);
  for (int64_t expert = 0, begin = 0; expert < experts; begin = ends[expert++]) {
    const int64_t length = ends[expert] - begin;
    const at::Tensor x_e = fp64(x.narrow(0, begin, length)), dy_e = fp64(dy.narrow(0, begin, length)), w_e = fp64(weights[expert]);
    y64.narrow(0, begin, length).copy_(at::matmul(x_e, w_e.t()));
    dx64.narrow(0, begin, length).copy_(at::matmul(dy_e, w_e));
    dw64[expert].copy_(at::matmul(dy_e.t(), x_e));
  }
  const ExpertRows rows{offsets.const_data_ptr<int32_t>(), static_cast<int>(experts), total};
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  const at::Tensor y = at::empty({total, outputs}, options()), dx = at::empty({total, inputs}, options());
  const at::Tensor dw = at::zeros({experts, outputs, inputs}, options().dtype(at::kFloat));
  grouped_rows_product(x.const_data_ptr(), weights.const_data_ptr(), y.mutable_data_ptr(), rows, outputs, inputs, false, stream);
  grouped_rows_product(dy.const_data_ptr(), weights.const_data_ptr(), dx.mutable_data_ptr(), rows, inputs, outputs, true, stream);
  for (int time = 0; time < 2; ++time) grouped_weights_product(dy.const_data_ptr(), x.const_data_ptr(), {dw.mutable_data_ptr(), Element::kFloat32, true}, rows, outputs, inputs, stream);
  expect_near(y, y64, 4e-3, "y");
  expect_near(dx, dx64, 4e-3, "dx");
  expect_near(dw, dw64 * 2, 1e-5, "dW, added twice");
}

INSTANTIATE_TEST_SUITE_P(Places, GroupedGemmCompute80Test, ::testing::Values(testing::Place{c10::DeviceType::CUDA, at::kBFloat16}), testing::place_name);

}  // namespace
}  // namespace oom::ops
