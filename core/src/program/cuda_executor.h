/// The executor of CUDA devices. One thread a rank launches the stages of the rank's five stream lanes in emission order and runs its
/// issue stages itself; pools have a leader thread each. Nothing here synchronises a device: host waits poll events, so that they
/// end when the run fails.
///
/// Order. A stage records an event when it has been enqueued, and only then says so; a consumer in another thread waits for that word
/// before it waits on the event, because waiting on an event that is not recorded is no wait at all. Each stage has two events, by
/// parity of the step, so that a consumer of the step before never meets the record of this one.
/// Pools say in pinned memory how far they have come. Copies to and from what they work on (StageSpec::waits_on_stream) wait for that word in their stream
/// and are launched at once; with a launch that waited, everything the rank emits later would wait along, and so would the ranks that need it.
/// Streams that wait for the host must not share a hardware queue with what the host waits for: CUDA_DEVICE_MAX_CONNECTIONS=32.
#pragma once

#include "program/executor.h"

namespace oom::program {

struct CudaExecutorOptions {
  /// Ordinal of each rank's device. Where ranks share one, launches wait for pools and not streams.
  std::vector<int> devices;
  /// Returns the cudaStream_t of a stream lane; it outlives the executor. Left out: the executor makes its own.
  std::function<void*(LaneId)> stream;
};

/// Throws DeviceError when a CUDA call fails.
std::unique_ptr<Executor> make_cuda_executor(BuiltProgram built, ExecutorOptions options, CudaExecutorOptions cuda);

}  // namespace oom::program
