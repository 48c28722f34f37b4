#include "runtime/device_runtime.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

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
  CpuRuntime(int ranks, int threads_per_rank) : threads_(threads_per_rank), arenas_(ranks) {}

  std::unique_ptr<program::Executor> make_executor(BuiltProgram built, program::ExecutorOptions options) override {
    options.thread_started = [threads = threads_](LaneId lane) {
      static thread_local std::optional<c10::InferenceMode> mode;
      mode.emplace();
      at::set_num_threads(lane.lane == Lane::kCompute ? threads : 1);
    };
    return program::make_cpu_executor(std::move(built), std::move(options));
  }
  std::byte* allocate(int rank, int64_t bytes) override {
    arenas_.at(rank).emplace(bytes, -1, cat("device memory of rank ", rank));
    return arenas_[rank]->data();
  }
  void run(int, const std::function<void(void* stream)>& enqueue) override { enqueue(nullptr); }
  void fill(int, std::byte* data, int value, int64_t bytes) override { std::memset(data, value, static_cast<size_t>(bytes)); }
  void cap_temporaries(int, int64_t) override {}
  std::vector<int64_t> peak_bytes(bool) override {
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
