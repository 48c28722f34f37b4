/// Streams and events of the CUDA runtime that end with their owner, and the check of its calls.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "oom/error.h"
#include "oom/stage.h"

namespace oom::program {

/// Throws DeviceError with the call, the runtime's name and text of the error.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw DeviceError(cat(call, " failed: ", cudaGetErrorName(status), ", ", cudaGetErrorString(status),
                        ". CUDA_LAUNCH_BLOCKING=1 shows which launch caused it"));
}
#define OOM_CHECK_CUDA(call) ::oom::program::check_cuda((call), #call)

/// Makes a device current in this thread while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    OOM_CHECK_CUDA(cudaGetDevice(&before_));
    OOM_CHECK_CUDA(cudaSetDevice(device));
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

/// An event of the device that is current when it is made.
class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags = cudaEventDisableTiming) { OOM_CHECK_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { OOM_CHECK_CUDA(cudaEventRecord(event_, stream)); }
  /// True when all that its last record covers is complete (or nothing was recorded).
  bool complete() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Exchanges and copies hold others up: their kernels go before those of the compute lane.
inline int stream_priority(Lane lane, int lowest, int highest) { return lane == Lane::kCompute ? lowest : highest; }

/// A stream of the current device that does not wait for the default stream.
class CudaStream {
 public:
  explicit CudaStream(int priority) { OOM_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority)); }
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace oom::program
