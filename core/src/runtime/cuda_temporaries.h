/// LibTorch's CUDA allocations of this process, out of pools of ours (memory/temporaries_pool.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "memory/temporaries_pool.h"

namespace oom::runtime {

/// Before LibTorch's first use of a GPU; later calls do nothing. Until a GPU's pool is opened, and on other streams than the pool's, an allocation is a cudaMalloc, which waits for the GPU.
/// Throws DeviceError where LibTorch's own allocator is in use already.
void install_cuda_temporaries();

/// Lets what is allocated on `stream` of `device` come from the device's pool, `capacity` bytes at most, of which a step should need `expected`. `stream` lives as long as the process and is the same at each call.
void open_cuda_temporaries(int device, cudaStream_t stream, int64_t capacity, int64_t expected);

/// After the last request of a step of every device.
void end_cuda_temporaries_step();

/// What was taken since the last opening: of the pool, and beside it.
struct CudaTemporaries {
  memory::TemporariesPool::Usage pool;
  int64_t beside = 0;       ///< bytes of cudaMalloc in use
  int64_t peak_beside = 0;
};
CudaTemporaries cuda_temporaries(int device);

}  // namespace oom::runtime
