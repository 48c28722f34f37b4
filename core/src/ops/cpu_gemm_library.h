/// Matrix products of the CPU device: oneDNN where its library can be opened, LibTorch otherwise (one warning) or when the environment
/// says OOM_CPU_GEMM=off.
#pragma once

#include <ATen/core/Tensor.h>

namespace oom::ops {

/// Which dimension of a product changes from call to call (row counts of experts and chunks).
enum class VaryingDimension { kM, kK };

/// c [M,N] = a [M,K] b [K,N] (accumulate: c += a b), CPU tensors, accumulation in FP32. a and b share FP32 or BF16 and may be transposed
/// views; c is row-major of FP32 or BF16. Any dimension may be 0; a product over K = 0 is exactly 0.
void cpu_gemm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate, VaryingDimension varying);

/// The same through LibTorch alone; what cpu_gemm falls back to.
void cpu_gemm_libtorch(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate);

/// Whether liboom_cpu_gemm.so was found; opens it at the first call.
bool cpu_gemm_library_available();

}  // namespace oom::ops
