/// Products of many experts at once: rows sorted by expert meet each expert's own matrix.
///
/// Legend: R rows, E experts, weights [E,N,K] contiguous (Hugging Face order: gate_up [E,2I,H], down [E,H,I]). `offsets` int32 [E] holds each
/// expert's end in the rows (cumulative, so offsets[E-1] <= R), on the rows' device. FP32 or BF16, one type for all operands of a call; rows are
/// contiguous. Accumulation is FP32.
///
/// Every row of a result is defined: rows at and past offsets[E-1] are zero. Rows past the end of an operand are never read, so they may hold
/// anything. An expert without rows has a weight gradient of exactly 0.
///
/// Backends: BF16 on sm_90 is LibTorch's grouped kernel, on other GPUs from sm_80 on our own tensor-core tiles; neither synchronises with the host,
/// sizes stay on the device. FP32 on CUDA, and widths that are no multiple of 8, copy the offsets to the host once a call and multiply expert by
/// expert: correct, slow, and said once in the log. On the CPU device: oneDNN.
/// Workspace: none of note beside the results; wgrad into an FP32 sink from BF16 rows makes a BF16 [E,N,K] of its own on sm_90, and where the
/// sink accumulates expert by expert one [N,K] an expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "oom/error.h"
#include "oom/ops/gradient_sink.h"

namespace oom::ops {

enum class GroupedGemmBackend { kCpu, kGroupedKernel, kTensorCoreTiles, kLoopOverExperts };
OOM_API std::string_view name_of(GroupedGemmBackend backend);

/// What decides how a grouped product runs. `compute_capability`: 90 for sm_90; 0 on the CPU device.
struct GroupedGemmProblem {
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  int compute_capability = 0;
  int64_t experts = 0, n = 0, k = 0;
};
/// A pure function of its arguments. Both kernels need BF16 and rows of a multiple of 16 bytes; LibTorch's (preferred unless kTensorCoreTiles is) sm_90
/// and fewer than 1024 experts, ours sm_80.
OOM_API GroupedGemmBackend choose_grouped_gemm_backend(const GroupedGemmProblem& problem, GroupedGemmBackend preferred = GroupedGemmBackend::kGroupedKernel);

/// Most that grouped_wgrad_into of a problem [E,N,K] allocates beside its sink, on the GPU that needs most where none is named (compute_capability 0).
OOM_API int64_t grouped_wgrad_workspace_bytes(GroupedGemmProblem problem);

/// Returns y [R,N]: y_r = W_e x_r. `x` [R,K].
OOM_API at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets);
/// Returns dx [R,K]: dx_r = W_e^T dy_r. `dy` [R,N].
OOM_API at::Tensor grouped_dgrad(const at::Tensor& dy, const at::Tensor& weights, const at::Tensor& offsets);
/// Returns dW [E,N,K] = sum over an expert's rows of dy_r x_r^T, of the operands' type.
OOM_API at::Tensor grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets);
/// The same into `sink` [E,N,K], FP32 or BF16. On sm_90 in BF16 the product is rounded to BF16 before it is added: let one call cover as many
/// rows as memory allows. All others keep FP32 throughout.
OOM_API void grouped_wgrad_into(const GradientSink& sink, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets);

}  // namespace oom::ops
