/// Memory that a process takes whatever the plan: context, libraries, threads. It counts in predicted peaks, as class fixed.
///
/// Measured on H200 (driver 580, CUDA 13.0, LibTorch 2.11, modules loaded as they are used). GPU, besides the arena and what temporaries had taken:
/// about 0.75 GiB with one GPU, 1.25 GiB with two that reach each other's memory. Host: the engine's proportional set size over training runs was 6.1 GiB
/// above its arena with two GPUs, 4.9 GiB with one.
#pragma once

#include <cstdint>

namespace oom::runtime {

/// On each of so many GPUs: CUDA context, mappings of peers, loaded modules, workspaces of cuBLAS and cuDNN.
constexpr int64_t gpu_fixed_bytes(int gpus) { return int64_t{gpus > 1 ? 1280 : 768} << 20; }
/// In host memory: LibTorch, thread stacks, allocators' reserves.
inline constexpr int64_t kHostFixedBytes = int64_t{512} << 20;
/// In host memory, with CUDA: the host side of its libraries, and for each GPU the driver's tables.
inline constexpr int64_t kHostFixedBytesOfCuda = int64_t{3220} << 20;
inline constexpr int64_t kHostFixedBytesPerGpu = int64_t{1280} << 20;
/// Of a GPU's memory, what is left to others when budget.gpu is left out.
inline constexpr double kGpuMargin = 0.02;

}  // namespace oom::runtime
