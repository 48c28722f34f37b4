/// Memory that a process takes whatever the plan: context, libraries, threads. It counts in predicted peaks, as class fixed.
///
/// Measured on two H200 (driver 580, CUDA 13.0, LibTorch 2.11, modules loaded as they are used). GPU: 702 MiB besides what the caching allocator had
/// reserved, after GEMMs, grouped GEMMs and attention by cuDNN, flash and mem-efficient kernels. Host: the engine's proportional set size over two
/// training runs of the 12-layer Qwen3-30B-A3B geometry was 6.1 GiB above its arena; how much of it belongs to each GPU was not measured apart.
#pragma once

#include <cstdint>

namespace oom::runtime {

/// On each GPU: CUDA context, loaded modules, workspaces of cuBLAS and cuDNN.
inline constexpr int64_t kGpuFixedBytes = int64_t{768} << 20;
/// In host memory: LibTorch, thread stacks, allocators' reserves.
inline constexpr int64_t kHostFixedBytes = int64_t{512} << 20;
/// In host memory for each GPU: the driver's tables and the host side of loaded modules.
inline constexpr int64_t kHostFixedBytesPerGpu = int64_t{2870} << 20;
/// Of a GPU's memory, what is left to others when budget.gpu is left out.
inline constexpr double kGpuMargin = 0.02;

}  // namespace oom::runtime
