/// Memory that a process takes whatever the plan: context, libraries, threads. It counts in predicted peaks, as class fixed.
///
/// Measured on H200 (driver 580, CUDA 13.0, LibTorch 2.11, modules loaded as they are used). GPU, besides the arena and what temporaries had taken:
/// 1.23 to 1.24 GiB before the first step, with one GPU and with two; after it 1.79 GiB with one and 1.81 to 1.83 GiB with two. Host: the engine's proportional set size over training runs was 6.1 GiB
/// above its arena with two GPUs, 4.9 GiB with one.
#pragma once

#include <cstdint>

namespace oom::runtime {

/// On each of so many GPUs: CUDA context, mappings of peers, modules that the first step loads.
constexpr int64_t gpu_fixed_bytes(int gpus) { return int64_t{gpus > 1 ? 1872 : 1840} << 20; }
/// In host memory: LibTorch, thread stacks, allocators' reserves.
inline constexpr int64_t kHostFixedBytes = int64_t{512} << 20;
/// In host memory, with CUDA: the host side of its libraries, and for each GPU the driver's tables.
inline constexpr int64_t kHostFixedBytesOfCuda = int64_t{3220} << 20;
inline constexpr int64_t kHostFixedBytesPerGpu = int64_t{1280} << 20;
/// Of a GPU's memory, what is left to others when budget.gpu is left out.
inline constexpr double kGpuMargin = 0.02;

}  // namespace oom::runtime
