#include "runtime/cuda_runtime.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/text.h"
#include "oom/error.h"
#include "oom/log.h"
#include "program/cuda_executor.h"
#include "program/cuda_handles.h"
#include "runtime/cuda_temporaries.h"

namespace oom::runtime {
namespace {

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw DeviceError(cat(what, ": ", cudaGetErrorString(status)));
}

c10::DeviceIndex device_of(int rank) { return static_cast<c10::DeviceIndex>(rank); }

}  // namespace

// What was allocated on one, cuBLAS's workspaces among it, is kept for it.
cudaStream_t lane_stream(int device, Lane lane) {
  static std::mutex mutex;
  static auto& streams = *new std::map<std::pair<int, Lane>, program::CudaStream>;  // at exit the driver may be gone before them
  const std::lock_guard lock(mutex);
  const std::pair key(device, lane);
  if (const auto found = streams.find(key); found != streams.end()) return found->second.get();
  const c10::cuda::CUDAGuard guard(device_of(device));
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  return streams.emplace(key, program::CudaStream(program::stream_priority(lane, lowest, highest))).first->second.get();
}

namespace {

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int ranks) : arenas_(ranks, nullptr), arena_bytes_(ranks, 0), silent_waits_(ranks, 0), fixed_(ranks, 0) {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices < ranks) {
      throw DeviceError(cat("engine.ranks: ", ranks, " ranks need as many GPUs; this machine has ", devices, status == cudaSuccess ? "" : cat(" (", cudaGetErrorString(status), ")"),
                            ". Lower engine.ranks, or set engine.device = \"cpu\""));
    }
    install_cuda_temporaries();
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    registry_ = memory::make_cuda_pinned_registry();
    // Of an earlier run of this process: its temporaries.
    for (int rank = 0; rank < ranks; ++rank) open_cuda_temporaries(rank, lane_stream(rank, Lane::kCompute), 0, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      check(cudaSetDevice(rank), cat("rank ", rank, ": cudaSetDevice"));
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        int reachable = 0;
        check(cudaDeviceCanAccessPeer(&reachable, rank, peer), "cudaDeviceCanAccessPeer");
        if (!reachable) {
          log_warn("device: GPU ", rank, " cannot reach GPU ", peer, " directly; their exchanges go through host memory and are slow");
          continue;
        }
        const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
        if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
          (void)cudaGetLastError();
        } else {
          check(enabled, cat("peer access from GPU ", rank, " to ", peer));
        }
      }
      open_cuda_temporaries(rank, lane_stream(rank, Lane::kCompute), measure_fixed(rank), 0);
    }
    check(cudaSetDevice(0), "cudaSetDevice");
  }

  ~CudaRuntime() override {
    for (size_t rank = 0; rank < arenas_.size(); ++rank) {
      if (arenas_[rank] == nullptr) continue;
      (void)cudaSetDevice(static_cast<int>(rank));
      (void)cudaDeviceSynchronize();
      (void)cudaFree(arenas_[rank]);
    }
    (void)cudaGetLastError();
  }

  std::unique_ptr<program::Executor> make_executor(BuiltProgram built, program::ExecutorOptions options) override {
    options.thread_started = [](LaneId lane) {
      static thread_local std::optional<c10::InferenceMode> mode;
      mode.emplace();
      if (is_pool_lane(lane.lane)) return;
      c10::cuda::set_device(device_of(lane.index));
      if (lane.lane != Lane::kIssue) return;
      // cuBLAS keeps a workspace by thread and stream for good: allocated first, it lies at an end of the temporaries.
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(lane_stream(lane.index, Lane::kCompute), device_of(lane.index)));
      (void)at::cuda::getCurrentCUDABlasHandle();
    };
    options.scope = [](StageContext& context, const Action& action) {
      if (context.stream == nullptr) {
        action(context);
        return;
      }
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(context.stream), device_of(context.rank)));
      action(context);
    };
    program::CudaExecutorOptions cuda;
    for (int rank = 0; rank < static_cast<int>(arenas_.size()); ++rank) cuda.devices.push_back(rank);
    cuda.stream = [](LaneId lane) -> void* { return lane_stream(lane.index, lane.lane); };
    return program::make_cuda_executor(std::move(built), std::move(options), std::move(cuda));
  }

  std::byte* allocate(int rank, int64_t bytes) override {
    check(cudaSetDevice(rank), "cudaSetDevice");
    const cudaError_t status = cudaMalloc(&arenas_.at(rank), static_cast<size_t>(bytes));
    if (status != cudaSuccess) {
      throw DeviceError(cat("rank ", rank, ": the arena of ", base::format_bytes(bytes), " could not be allocated: ", cudaGetErrorString(status), ". Is another program using GPU ", rank, "?"));
    }
    arena_bytes_[rank] = bytes;
    check(cudaMemset(arenas_[rank], 0, static_cast<size_t>(bytes)), "cudaMemset of the arena");
    return static_cast<std::byte*>(arenas_[rank]);
  }

  void run(int rank, const std::function<void(void* stream)>& enqueue) override {
    const c10::cuda::CUDAGuard guard(device_of(rank));
    enqueue(cudaStreamPerThread);
    check(cudaStreamSynchronize(cudaStreamPerThread), cat("rank ", rank, ": cudaStreamSynchronize"));
  }

  void fill(int rank, std::byte* data, int value, int64_t bytes) override {
    check(cudaSetDevice(rank), "cudaSetDevice");
    check(cudaMemset(data, value, static_cast<size_t>(bytes)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void cap_temporaries(int rank, int64_t bytes, int64_t planned) override { open_cuda_temporaries(rank, lane_stream(rank, Lane::kCompute), bytes, planned); }

  void end_step() override {
    end_cuda_temporaries_step();
    for (int rank = 0; rank < static_cast<int>(arenas_.size()); ++rank) {
      const memory::TemporariesPool::Usage pool = cuda_temporaries(rank).pool;
      tell_waits(rank, pool.waits);
      if (pool.steps <= 2) measure_fixed(rank);
      if (pool.steps != 2) continue;  // the first is where places are sought
      log_info("memory: gpu ", rank, ": temporaries of a step: ", base::format_bytes(pool.peak_in_use), " in use at most, in ", base::format_bytes(pool.mapped), " (first step: ",
               base::format_bytes(pool.peak_mapped), ")");
    }
  }

  std::vector<int64_t> peak_bytes() override {
    std::vector<int64_t> peaks;
    for (int rank = 0; rank < static_cast<int>(arenas_.size()); ++rank) {
      const CudaTemporaries temporaries = cuda_temporaries(rank);
      peaks.push_back(arena_bytes_[rank] + temporaries.pool.peak_mapped + temporaries.peak_beside + fixed_[rank]);
    }
    return peaks;
  }

  std::vector<int64_t> fixed_bytes() override { return fixed_; }
  memory::PinnedRegistry* registry() override { return registry_.get(); }

 private:
  // All that is neither arena nor temporaries. Libraries load modules when they are first used: it grows in the first step.
  // Returns what is free.
  int64_t measure_fixed(int rank) {
    const c10::cuda::CUDAGuard guard(device_of(rank));
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), cat("rank ", rank, ": cudaMemGetInfo"));
    const CudaTemporaries temporaries = cuda_temporaries(rank);
    fixed_[rank] = std::max(fixed_[rank], static_cast<int64_t>(total - free) - arena_bytes_[rank] - temporaries.pool.mapped - temporaries.beside);
    return static_cast<int64_t>(free);
  }

  // Nothing failed, but a step that moves pages waits for the GPU each time.
  void tell_waits(int rank, int64_t waits) {
    if (waits <= silent_waits_.at(rank)) return;
    log_warn("memory: gpu ", rank, ": times so far that the pages of temporaries had to be moved, which waits for the GPU: ", waits, "; steps are slower for it. Raise budget.gpu, or plan with more headroom");
    silent_waits_[rank] = std::max<int64_t>(2 * waits, 16);  // told again when it doubled
  }

  std::unique_ptr<memory::PinnedRegistry> registry_;
  std::vector<void*> arenas_;
  std::vector<int64_t> arena_bytes_;
  std::vector<int64_t> silent_waits_;  // so many are not told
  std::vector<int64_t> fixed_;  // context and modules, measured before the arena was taken and after the first steps
};

}  // namespace

std::unique_ptr<DeviceRuntime> make_cuda_runtime(int ranks) { return std::make_unique<CudaRuntime>(ranks); }

}  // namespace oom::runtime
