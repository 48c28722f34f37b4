/// Small copies from a GPU to host memory by a kernel. A GPU has one copy engine for that direction: there, a few counts that the host waits for stand behind
/// hundreds of megabytes of other streams.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oom::comm {

inline constexpr int64_t kSmallCopyBytes = int64_t{64} << 10;

/// Whether these are whole words that go from device memory to registered host memory.
bool is_small_copy(const void* to, const void* from, int64_t bytes);
/// Enqueues the copy on `stream` of the current device; the host sees it when the stream has got past it.
cudaError_t small_copy_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace oom::comm
