/// How many stages of each pool lane are complete, in pinned memory where streams wait for it: a launch need not.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <new>
#include <string>

#include "program/cuda_handles.h"

namespace oom::program {

/// Counts only grow. `raise` of one lane is called by one thread; everything else may be called from any.
class HostCounts {
 public:
  explicit HostCounts(int lanes) : lanes_(lanes) {
    void* memory = nullptr;
    OOM_CHECK_CUDA(cudaHostAlloc(&memory, static_cast<size_t>(lanes) * sizeof(Count), cudaHostAllocPortable | cudaHostAllocMapped));
    counts_ = static_cast<Count*>(memory);
    for (int lane = 0; lane < lanes; ++lane) new (&counts_[lane]) Count{};
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &address, 12000, cudaEnableDefault, &result);
    if (status == cudaSuccess && result == cudaDriverEntryPointSuccess) wait_value_ = reinterpret_cast<decltype(&cuStreamWaitValue64)>(address);
  }
  ~HostCounts() { cudaFreeHost(counts_); }
  HostCounts(const HostCounts&) = delete;

  /// The lane's first `count` stages are complete, and what they wrote to host memory is there for streams that waited for it.
  void raise(int lane, int64_t count) {
    std::atomic<int64_t>& now = counts_[lane].value;
    for (int64_t before = now.load(std::memory_order_relaxed); before < count && !now.compare_exchange_weak(before, count, std::memory_order_release);) {
    }
  }
  /// Nobody waits any more.
  void release() {
    for (int lane = 0; lane < lanes_; ++lane) raise(lane, std::numeric_limits<int64_t>::max());
  }
  /// Streams shall not wait from now on: `wait` returns false.
  void refuse_waits() { wait_value_ = nullptr; }
  /// Enqueues on a stream of the current device that it goes on when the lane's count has come so far. False: the device cannot.
  bool wait(cudaStream_t stream, int lane, int64_t count) const {
    return wait_value_ != nullptr &&
           wait_value_(stream, reinterpret_cast<CUdeviceptr>(&counts_[lane].value), static_cast<cuuint64_t>(count), CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
  }

 private:
  struct alignas(64) Count {
    std::atomic<int64_t> value{0};
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free);

  int lanes_;
  Count* counts_ = nullptr;
  decltype(&cuStreamWaitValue64) wait_value_ = nullptr;
};

}  // namespace oom::program
