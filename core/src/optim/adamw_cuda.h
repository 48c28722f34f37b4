/// AdamW over state blocks on a GPU, in the written order of optim/adamw.h: the same bits as on the host. Present where the engine is built for CUDA.
///
/// Plain device pointers; every call launches on `stream` of the calling thread's current device and returns at once. Nothing is
/// allocated. Arrays begin at the shard's element 0 and are 16-byte aligned at least. Launch failures throw DeviceError.
/// Sums of squares are taken in double in a fixed order: the same from run to run, equal to the host's up to double rounding.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "optim/adamw.h"

namespace oom::optim {

inline constexpr int kMostDevicePartials = 16;

/// What a device-side norm says about a gradient.
struct DeviceGradientStats {
  double sum_of_squares;
  int32_t finite;  ///< 1 or 0
};

struct AdamWDeviceJob {
  StateBlocks state;                      ///< device memory; only its address and count are used
  Gradients gradients;                    ///< at most kMostDevicePartials, this device's or mapped peers' memory
  float gradient_scale = 1.0f;
  const float* device_gradient_scale = nullptr;  ///< not null: read on the device, multiplied with gradient_scale first
  const double* gradient_sum_of_squares = nullptr;  ///< not null: read on the device; where it is not finite, nothing is changed. Not with partial_sums
  AdamWStep step;
  std::span<const ElementRange> without_decay;   ///< ascending, disjoint; each inner border costs a launch
  Publish publish;
  double* partial_sums = nullptr;         ///< null, or partial_sum_count(begin, end, without_decay) doubles of scratch
  DeviceGradientStats* stats = nullptr;   ///< with partial_sums: where the norm of elements [begin, end) goes
};

/// Returns the doubles of scratch that an update of [begin, end) takes for its sum of squares.
int64_t partial_sum_count(int64_t begin, int64_t end, std::span<const ElementRange> without_decay = {});

/// Updates elements [begin, end) in one pass: sums the partials in order, updates the state, publishes.
void adamw_update_cuda(const AdamWDeviceJob& job, int64_t begin, int64_t end, cudaStream_t stream);

/// Makes working weights [begin, end) from masters.
void publish_weights_cuda(const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish, cudaStream_t stream);

/// Writes the sum of squares and finiteness of `count` scaled elements. `partial_sums`: partial_sum_count(0, count) doubles.
void sum_of_squares_cuda(ElementType type, const void* data, int64_t count, float scale, double* partial_sums, DeviceGradientStats* stats,
                         cudaStream_t stream);

/// Sums partials [0, count) in FP32 in order, then rounds once to `out_type`. `out` may be one of the partials of the same type.
/// `partial_sums` and `stats` as above, of the FP32 sum before rounding; both may be null.
void sum_partials_cuda(const Gradients& partials, int64_t count, ElementType out_type, void* out, double* partial_sums, DeviceGradientStats* stats,
                       cudaStream_t stream);

/// Adds up stats of several ranges: out = sum of `stats[0..count)`, in order; finite when all are.
void combine_stats_cuda(const DeviceGradientStats* stats, int64_t count, DeviceGradientStats* out, cudaStream_t stream);

}  // namespace oom::optim
