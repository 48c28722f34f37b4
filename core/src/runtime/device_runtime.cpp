#include "runtime/device_runtime.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "memory/host_mapping.h"
#include "oom/error.h"
#if OOM_WITH_CUDA
#include "runtime/cuda_runtime.h"
#endif

namespace oom::runtime {
namespace {

class CpuRuntime final : public DeviceRuntime {
 public:
  // OMP_THREAD_LIMIT may grant fewer threads than are wanted, and oneDNN's products are wrong where it gets fewer than it was told.
  CpuRuntime(int ranks, int threads_per_rank) : threads_(std::min(threads_per_rank, omp_get_thread_limit())), arenas_(ranks) {}

  std::unique_ptr<program::Executor> make_executor(BuiltProgram built, program::ExecutorOptions options) override {
    options.thread_started = [threads = threads_](LaneId lane) {
      static thread_local std::optional<c10::InferenceMode> mode;
      mode.emplace();
      // LibTorch hands the number set last, by whichever thread, to every thread that enters its first parallel region: all set the same. Behind
      // that first time, of which this library and LibTorch each keep a note, lanes that only move data go down to one thread.
      at::set_num_threads(threads);
      at::internal::lazy_init_num_threads();
      at::get_num_threads();
      omp_set_dynamic(0);
      if (lane.lane != Lane::kCompute) omp_set_num_threads(1);
    };
    return program::make_cpu_executor(std::move(built), std::move(options));
  }
  std::byte* allocate(int rank, int64_t bytes) override {
    arenas_.at(rank).emplace(bytes, -1, cat("device memory of rank ", rank));
    return arenas_[rank]->data();
  }
  void run(int, const std::function<void(void* stream)>& enqueue) override { enqueue(nullptr); }
  void fill(int, std::byte* data, int value, int64_t bytes) override { std::memset(data, value, static_cast<size_t>(bytes)); }
  void cap_temporaries(int, int64_t, int64_t) override {}
  void end_step() override {}
  std::vector<int64_t> peak_bytes() override {
    std::vector<int64_t> peaks;
    for (const auto& arena : arenas_) peaks.push_back(arena ? arena->bytes() : 0);
    return peaks;
  }
  std::vector<int64_t> fixed_bytes() override { return std::vector<int64_t>(arenas_.size(), 0); }
  memory::PinnedRegistry* registry() override { return nullptr; }

 private:
  int threads_;
  std::vector<std::optional<memory::HostMapping>> arenas_;
};

}  // namespace

DeviceRuntime::~DeviceRuntime() = default;

std::unique_ptr<DeviceRuntime> DeviceRuntime::make(DeviceKind device, int ranks, int threads_per_rank) {
#if OOM_WITH_CUDA
  if (device == DeviceKind::kCuda) return make_cuda_runtime(ranks);
#endif
  OOM_CHECK(device == DeviceKind::kCpu, "this build has no CUDA");
  return std::make_unique<CpuRuntime>(ranks, threads_per_rank);
}

}  // namespace oom::runtime
