#include "memory/pinned_registry.h"

#include "oom/error.h"

#if OOM_WITH_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "hardware/host_limits.h"
#include "oom/log.h"
#endif

namespace oom::memory {

#if OOM_WITH_CUDA
namespace {

constexpr int kThreads = 8;  // the driver's page pinning gains nothing from more

std::string failure_message(const ByteRange& piece, cudaError_t status) {
  const auto memlock = hardware::read_host_limits().memlock_bytes;
  return cat("memory: cudaHostRegister of ", base::format_bytes(piece.bytes), ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
             ". RLIMIT_MEMLOCK is ", memlock ? base::format_bytes(*memlock) : "unlimited",
             ". Lower budget.host, or allow more locked memory (ulimit -l unlimited; docker run --ulimit memlock=-1).");
}

class CudaPinnedRegistry : public PinnedRegistry {
 public:
  void register_range(std::byte* data, int64_t bytes, const std::function<void(int64_t)>& done) override {
    int device = 0;
    cudaGetDevice(&device);
    // One piece where the driver allows: a copy that begins in one registered piece and ends in another is refused (cudaErrorInvalidValue).
    const std::vector<ByteRange> pieces = registration_pieces(data, bytes, /*threads=*/1);
    std::vector<cudaError_t> status(pieces.size(), cudaErrorUnknown);
    std::atomic<size_t> next = 0;
    std::atomic<int64_t> registered = 0;
    std::atomic<bool> failed = false;
    {
      std::vector<std::jthread> team;
      for (size_t t = 0; t < std::min<size_t>(kThreads, pieces.size()); ++t)
        team.emplace_back([&] {
          cudaSetDevice(device);
          for (size_t i; !failed && (i = next++) < pieces.size();) {
            status[i] = cudaHostRegister(pieces[i].data, pieces[i].bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
            if (status[i] != cudaSuccess) {
              cudaGetLastError();
              failed = true;
            } else if (done) {
              done(registered += pieces[i].bytes);
            }
          }
        });
    }
    if (failed) {
      std::string message;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (status[i] == cudaSuccess)
          cudaHostUnregister(pieces[i].data);
        else if (status[i] != cudaErrorUnknown && message.empty())
          message = failure_message(pieces[i], status[i]);
      }
      throw DeviceError(message.empty() ? failure_message(pieces.front(), cudaErrorUnknown) : message);
    }
    const std::lock_guard lock(mutex_);
    registered_[data] = pieces;
  }

  void unregister_range(std::byte* data) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = registered_.find(data);
    if (found == registered_.end()) return;
    for (const ByteRange& piece : found->second)
      if (cudaHostUnregister(piece.data) != cudaSuccess) cudaGetLastError();  // at the end of a failed process the context may be gone
    registered_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::vector<ByteRange>> registered_;
};

}  // namespace

std::unique_ptr<PinnedRegistry> make_cuda_pinned_registry() { return std::make_unique<CudaPinnedRegistry>(); }

#else

std::unique_ptr<PinnedRegistry> make_cuda_pinned_registry() {
  throw DeviceError("memory: this engine was built for the CPU alone and cannot register memory for GPUs");
}

#endif

}  // namespace oom::memory
