#include "comm/cuda_transfer.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "comm/small_copy.h"
#include "oom/error.h"
#include "optim/adamw_cuda.h"

namespace oom::comm {
namespace {

void check(cudaError_t status, const char* what, int64_t bytes) {
  if (status == cudaSuccess) return;
  throw DeviceError(cat(what, " of ", bytes, " bytes failed: ", cudaGetErrorString(status), ". Run with CUDA_LAUNCH_BLOCKING=1 to see the call that caused it"));
}

optim::ElementType as_optim(ElementType type) { return type == ElementType::kFloat32 ? optim::ElementType::kFP32 : optim::ElementType::kBF16; }

class CudaTransfer final : public DeviceTransfer {
 public:
  // Addresses say which memories they are in: registered host, this GPU's, a peer's.
  void copy(void* to, const void* from, int64_t bytes, int64_t chunk_bytes, void* stream) override {
    if (bytes <= kSmallCopyBytes && is_small_copy(to, from, bytes)) {
      check(small_copy_to_host(to, from, bytes, static_cast<cudaStream_t>(stream)), "a small copy", bytes);
      return;
    }
    for (int64_t at = 0; at < bytes; at += chunk_bytes) {
      const int64_t piece = std::min(chunk_bytes, bytes - at);
      check(cudaMemcpyAsync(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, static_cast<size_t>(piece), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
            "a copy", piece);
    }
  }
  void zero(void* data, int64_t bytes, void* stream) override {
    check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)), "a memset", bytes);
  }
  void sum_partials(void* out, ElementType out_type, std::span<const void* const> partials, ElementType partial_type, int64_t count, double* sum_of_squares, void* scratch,
                    void* stream) override {
    OOM_CHECK_LE(optim::partial_sum_count(0, count) * static_cast<int64_t>(sizeof(double)), reduction_scratch_bytes(count), "scratch of a reduction");
    OOM_CHECK((sum_of_squares == nullptr) == (scratch == nullptr), "a sum of squares and its scratch come together");
    optim::sum_partials_cuda({as_optim(partial_type), partials}, count, as_optim(out_type), out, static_cast<double*>(scratch),
                             reinterpret_cast<optim::DeviceGradientStats*>(sum_of_squares), static_cast<cudaStream_t>(stream));
  }
  void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows, void* stream) override {
    check(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch), static_cast<size_t>(width), static_cast<size_t>(rows), cudaMemcpyDefault,
                            static_cast<cudaStream_t>(stream)),
          "a copy of rows", width * rows);
  }

  void update_state(const optim::AdamWJob& job, std::span<const optim::ElementRange> ranges, const double* sum_of_squares, void* stream) override {
    optim::AdamWDeviceJob device{.state = job.state, .gradients = job.gradients, .gradient_scale = job.gradient_scale, .gradient_sum_of_squares = sum_of_squares, .step = job.step,
                                 .without_decay = job.without_decay, .publish = job.publish};
    for (const optim::ElementRange& range : ranges) optim::adamw_update_cuda(device, range.begin, range.end, static_cast<cudaStream_t>(stream));
  }
  void make_weights(const optim::StateBlocks& state, const optim::Publish& publish, void* stream) override {
    optim::publish_weights_cuda(state, 0, state.count(), publish, static_cast<cudaStream_t>(stream));
  }
};

}  // namespace

std::unique_ptr<DeviceTransfer> make_cuda_transfer() { return std::make_unique<CudaTransfer>(); }

}  // namespace oom::comm
