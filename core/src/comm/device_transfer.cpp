#include "comm/device_transfer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "oom/error.h"

#if OOM_WITH_CUDA
#include "comm/cuda_transfer.h"
#endif

namespace oom::comm {
namespace {

// Elements are added lane by lane within blocks, blocks in order: the order that the update's own sum of squares has.
constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 4096;

class CpuTransfer final : public DeviceTransfer {
 public:
  void copy(void* to, const void* from, int64_t bytes, int64_t, void*) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  void zero(void* data, int64_t bytes, void*) override { std::memset(data, 0, static_cast<size_t>(bytes)); }

  void sum_partials(void* out, ElementType out_type, std::span<const void* const> partials, ElementType partial_type, int64_t count, double* sum_of_squares, void*,
                    void*) override {
    const auto value = [partial_type](const void* data, int64_t i) {
      return partial_type == ElementType::kFloat32 ? static_cast<const float*>(data)[i] : base::from_bfloat16(static_cast<const uint16_t*>(data)[i]);
    };
    double total = 0;
    for (int64_t block = 0; block < count; block += kBlock) {
      double lanes[kLanes] = {};
      for (int64_t i = block; i < std::min(count, block + kBlock); ++i) {
        float sum = value(partials[0], i);
        for (size_t p = 1; p < partials.size(); ++p) sum += value(partials[p], i);
        lanes[i % kLanes] += static_cast<double>(sum) * static_cast<double>(sum);
        if (out_type == ElementType::kFloat32) {
          static_cast<float*>(out)[i] = sum;
        } else {
          static_cast<uint16_t*>(out)[i] = base::to_bfloat16(sum);
        }
      }
      for (const double lane : lanes) total += lane;
    }
    if (sum_of_squares != nullptr) *sum_of_squares = total;
  }
  void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width, int64_t rows, void*) override {
    for (int64_t row = 0; row < rows; ++row) std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, static_cast<size_t>(width));
  }

  void update_state(const optim::AdamWJob& job, std::span<const optim::ElementRange> ranges, const double* sum_of_squares, void*) override {
    if (!std::isfinite(*sum_of_squares)) return;
    for (const optim::ElementRange& range : ranges) optim::adamw_update(job, range.begin, range.end);
  }
  void make_weights(const optim::StateBlocks& state, const optim::Publish& publish, void*) override { optim::publish_weights(state, 0, state.count(), publish); }
};

}  // namespace

DeviceTransfer::~DeviceTransfer() = default;

std::unique_ptr<DeviceTransfer> DeviceTransfer::for_planning() { return std::make_unique<CpuTransfer>(); }

std::unique_ptr<DeviceTransfer> DeviceTransfer::make(DeviceKind device) {
#if OOM_WITH_CUDA
  if (device == DeviceKind::kCuda) return make_cuda_transfer();
#else
  if (device == DeviceKind::kCuda) throw ConfigError("engine.device: this build has no CUDA; set device = \"cpu\", or build with nvcc 13.0");
#endif
  return std::make_unique<CpuTransfer>();
}

}  // namespace oom::comm
