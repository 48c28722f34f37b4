/// What differs between the CPU device and CUDA for a run: executor and thread set-up, device memory, peak use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "memory/pinned_registry.h"
#include "oom/plan.h"
#include "program/executor.h"

namespace oom::runtime {

class DeviceRuntime {
 public:
  /// `threads_per_rank`: LibTorch threads of a rank's compute lane on the CPU device.
  static std::unique_ptr<DeviceRuntime> make(DeviceKind device, int ranks, int threads_per_rank);
  virtual ~DeviceRuntime();

  /// Runs `built` with every lane's thread set up: device, InferenceMode, stream, OpenMP team.
  virtual std::unique_ptr<program::Executor> make_executor(BuiltProgram built, program::ExecutorOptions options) = 0;
  /// Zeroed memory for a rank's arena; lives as long as this object. Once a rank. Throws DeviceError with numbers.
  virtual std::byte* allocate(int rank, int64_t bytes) = 0;
  /// Lets `enqueue` put work on a stream of the calling thread's own (null on the CPU device) with the rank's device current; returns when it is done.
  virtual void run(int rank, const std::function<void(void* stream)>& enqueue) = 0;
  virtual void fill(int rank, std::byte* data, int value, int64_t bytes) = 0;
  /// Caps what LibTorch's allocations of a rank's compute lane may take, so that the budget holds, of which the plan needs `planned`; nothing on the CPU device.
  virtual void cap_temporaries(int rank, int64_t bytes, int64_t planned) = 0;
  /// After every executor's last request of a step: temporaries may be given better places.
  virtual void end_step() = 0;
  /// Arena + peak of what temporaries took + context, by rank. On the CPU device temporaries are ordinary host memory: the arena alone.
  virtual std::vector<int64_t> peak_bytes() = 0;
  /// What context and libraries take on each device besides arena and temporaries; 0 on the CPU device.
  virtual std::vector<int64_t> fixed_bytes() = 0;
  /// Registers host memory for copies; null on the CPU device.
  virtual memory::PinnedRegistry* registry() = 0;
};

}  // namespace oom::runtime
