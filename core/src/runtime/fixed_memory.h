/// Memory that a process takes whatever the plan: context, libraries, threads. It counts in predicted peaks, as class fixed.
///
/// First measured on one H200 (driver for CUDA 13, LibTorch 2.11, modules loaded as they are used) after GEMMs, grouped GEMMs and attention by cuDNN,
/// flash and mem-efficient kernels: 702 MiB of the GPU besides what the caching allocator had reserved, 905 MiB of host memory, Python's own included.
/// With CUDA_MODULE_LOADING=EAGER it would be 1.8 GiB and 5.2 GiB. To be measured again on the engine itself, with two GPUs and NCCL.
#pragma once

#include <cstdint>

namespace oom::runtime {

/// On each GPU: CUDA context, loaded modules, workspaces of cuBLAS and cuDNN.
inline constexpr int64_t kGpuFixedBytes = int64_t{768} << 20;
/// In host memory: LibTorch, thread stacks, allocators' reserves.
inline constexpr int64_t kHostFixedBytes = int64_t{512} << 20;
/// In host memory for each GPU: the driver's tables and the host side of loaded modules.
inline constexpr int64_t kHostFixedBytesPerGpu = int64_t{512} << 20;
/// Of a GPU's memory, what is left to others when budget.gpu is left out.
inline constexpr double kGpuMargin = 0.02;

}  // namespace oom::runtime
