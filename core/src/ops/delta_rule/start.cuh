/// Starts a kernel that may want more shared memory than the 48 KiB every kernel has.
#pragma once

#include <type_traits>

#include "ops/vector.cuh"

namespace oom::ops::delta_rule {

/// Most shared memory that a block of the current device can have.
inline int shared_bytes_limit() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    throw DeviceError(cat("no current CUDA device: ", cudaGetErrorString(cudaGetLastError())));
  return bytes;
}

template <typename... Arguments>
void start(void (*kernel)(Arguments...), const char* name, dim3 grid, int threads, int shared_bytes, Stream stream,
           const std::type_identity_t<Arguments>&... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess)
    throw DeviceError(cat("CUDA kernel ", name, " did not get ", shared_bytes, " bytes of shared memory: ", cudaGetErrorString(status)));
  kernel<<<grid, static_cast<unsigned int>(threads), static_cast<size_t>(shared_bytes), stream>>>(arguments...);
  check_launch(name);
}

}  // namespace oom::ops::delta_rule
