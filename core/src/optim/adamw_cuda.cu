// One thread block a state block: 512 threads of 8 elements, so that state moves in 16-byte pieces and BF16 in one.
#include <algorithm>
#include <type_traits>

#include "oom/error.h"
#include "optim/adamw_cuda.h"
#include "optim/bf16.h"

namespace oom::optim {
namespace {

constexpr int kThreadElements = 8;
constexpr int kThreads = kBlockParameters / kThreadElements;
constexpr int kReduceThreads = 1024;

struct Partials {
  const void* data[kMostDevicePartials];
  int count;
};

void check_launch(const char* kernel) {
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    throw DeviceError(cat(kernel, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

Partials device_partials(const Gradients& gradients) {
  OOM_CHECK(!gradients.partials.empty() && gradients.partials.size() <= kMostDevicePartials, gradients.partials.size(), " partial gradients");
  Partials partials{};
  for (const void* data : gradients.partials) {
    OOM_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0, "a partial gradient is not 16-byte aligned");
    partials.data[partials.count++] = data;
  }
  return partials;
}

template <ElementType kType>
__device__ float load_one(const void* data, int64_t index) {
  if constexpr (kType == ElementType::kBF16)
    return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16);
  else
    return static_cast<const float*>(data)[index];
}

template <ElementType kType>
__device__ void store_one(void* data, int64_t index, float value) {
  if constexpr (kType == ElementType::kBF16)
    static_cast<uint16_t*>(data)[index] = bf16_from_float(value);
  else
    static_cast<float*>(data)[index] = value;
}

__device__ void load_floats(const float* data, float (&values)[kThreadElements]) {
  const float4 low = reinterpret_cast<const float4*>(data)[0], high = reinterpret_cast<const float4*>(data)[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ void store_floats(float* data, const float (&values)[kThreadElements]) {
  reinterpret_cast<float4*>(data)[0] = make_float4(values[0], values[1], values[2], values[3]);
  reinterpret_cast<float4*>(data)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

/// Loads elements [index, index + 8); index is a multiple of 8.
template <ElementType kType>
__device__ void load_eight(const void* data, int64_t index, float (&values)[kThreadElements]) {
  if constexpr (kType == ElementType::kBF16) {
    const uint4 packed = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + index);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      values[2 * k] = __uint_as_float(words[k] << 16);
      values[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
    }
  } else {
    load_floats(static_cast<const float*>(data) + index, values);
  }
}

template <ElementType kType>
__device__ void store_eight(void* data, int64_t index, const float (&values)[kThreadElements]) {
  if constexpr (kType == ElementType::kBF16) {
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      words[k] = static_cast<uint32_t>(bf16_from_float(values[2 * k])) | static_cast<uint32_t>(bf16_from_float(values[2 * k + 1])) << 16;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + index) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    store_floats(static_cast<float*>(data) + index, values);
  }
}

/// Sums partials in rank order.
template <ElementType kType>
__device__ void sum_eight(const Partials& partials, int64_t index, float (&sum)[kThreadElements]) {
  load_eight<kType>(partials.data[0], index, sum);
  for (int p = 1; p < partials.count; ++p) {
    float next[kThreadElements];
    load_eight<kType>(partials.data[p], index, next);
#pragma unroll
    for (int k = 0; k < kThreadElements; ++k) sum[k] = __fadd_rn(sum[k], next[k]);
  }
}

template <ElementType kType>
__device__ float sum_one(const Partials& partials, int64_t index) {
  float sum = load_one<kType>(partials.data[0], index);
  for (int p = 1; p < partials.count; ++p) sum = __fadd_rn(sum, load_one<kType>(partials.data[p], index));
  return sum;
}

/// The written order of optim/adamw.h.
__device__ void update_one(const AdamWConstants& c, float g, float& m, float& v, float& w) {
  w = __fmaf_rn(c.decay, w, w);
  m = __fmaf_rn(c.one_minus_beta1, __fsub_rn(g, m), m);
  v = __fmaf_rn(__fmul_rn(c.one_minus_beta2, g), g, __fmul_rn(c.beta2, v));
  const float d = __fmaf_rn(__fsqrt_rn(v), c.inverse_root_correction2, c.eps);
  w = __fmaf_rn(c.rate, __fdiv_rn(m, d), w);
}

/// The block's total on thread 0, by a fixed tree.
template <int kBlockThreads>
__device__ double block_sum(double value) {
  __shared__ double warp_sums[kBlockThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kBlockThreads / 32; ++warp) total += warp_sums[warp];
  return total;
}

struct UpdateArguments {
  float* state;
  Partials partials;
  AdamWConstants constants;
  float gradient_scale;
  const float* device_gradient_scale;
  const double* gradient_sum_of_squares;
  void* publish;
  double* partial_sums;
  int64_t begin, end;
};

constexpr int kNothing = 2;  // beside the values of ElementType

template <ElementType kGradient, int kPublish>
__global__ void __launch_bounds__(kThreads) update_kernel(const UpdateArguments a) {
  if (a.gradient_sum_of_squares != nullptr && !isfinite(*a.gradient_sum_of_squares)) return;
  const int64_t block = a.begin / kBlockParameters + blockIdx.x;
  const int in_block = static_cast<int>(threadIdx.x) * kThreadElements;
  const int64_t index = block * kBlockParameters + in_block;
  float* m_at = a.state + block * kBlockFloats + in_block;
  float* v_at = m_at + kBlockParameters;
  float* w_at = v_at + kBlockParameters;
  const float scale = a.device_gradient_scale ? __fmul_rn(*a.device_gradient_scale, a.gradient_scale) : a.gradient_scale;
  double squares = 0;
  if (index >= a.begin && index + kThreadElements <= a.end) {
    float g[kThreadElements], m[kThreadElements], v[kThreadElements], w[kThreadElements];
    sum_eight<kGradient>(a.partials, index, g);
    load_floats(m_at, m);
    load_floats(v_at, v);
    load_floats(w_at, w);
#pragma unroll
    for (int k = 0; k < kThreadElements; ++k) {
      g[k] = __fmul_rn(g[k], scale);
      squares += static_cast<double>(g[k]) * static_cast<double>(g[k]);
      update_one(a.constants, g[k], m[k], v[k], w[k]);
    }
    store_floats(m_at, m);
    store_floats(v_at, v);
    store_floats(w_at, w);
    if constexpr (kPublish != kNothing) store_eight<static_cast<ElementType>(kPublish)>(a.publish, index, w);
  } else {
    for (int k = 0; k < kThreadElements; ++k) {
      if (index + k < a.begin || index + k >= a.end) continue;
      const float g = __fmul_rn(sum_one<kGradient>(a.partials, index + k), scale);
      squares += static_cast<double>(g) * static_cast<double>(g);
      update_one(a.constants, g, m_at[k], v_at[k], w_at[k]);
      if constexpr (kPublish != kNothing) store_one<static_cast<ElementType>(kPublish)>(a.publish, index + k, w_at[k]);
    }
  }
  if (a.partial_sums != nullptr) {
    const double total = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) a.partial_sums[blockIdx.x] = total;
  }
}

template <ElementType kPublish>
__global__ void __launch_bounds__(kThreads) publish_kernel(const float* state, int64_t begin, int64_t end, void* publish) {
  const int64_t block = begin / kBlockParameters + blockIdx.x;
  const int in_block = static_cast<int>(threadIdx.x) * kThreadElements;
  const int64_t index = block * kBlockParameters + in_block;
  const float* w_at = state + block * kBlockFloats + 2 * kBlockParameters + in_block;
  if (index >= begin && index + kThreadElements <= end) {
    float w[kThreadElements];
    load_floats(w_at, w);
    store_eight<kPublish>(publish, index, w);
  } else {
    for (int k = 0; k < kThreadElements; ++k)
      if (index + k >= begin && index + k < end) store_one<kPublish>(publish, index + k, w_at[k]);
  }
}

/// kOut == kNothing: only the sum of squares is wanted.
template <ElementType kIn, int kOut>
__global__ void __launch_bounds__(kThreads) sum_kernel(const Partials partials, int64_t count, float scale, void* out, double* partial_sums) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kThreadElements;
  double squares = 0;
  if (index + kThreadElements <= count) {
    float sum[kThreadElements];
    sum_eight<kIn>(partials, index, sum);
#pragma unroll
    for (int k = 0; k < kThreadElements; ++k) {
      sum[k] = __fmul_rn(sum[k], scale);
      squares += static_cast<double>(sum[k]) * static_cast<double>(sum[k]);
    }
    if constexpr (kOut != kNothing) store_eight<static_cast<ElementType>(kOut)>(out, index, sum);
  } else {
    for (int64_t i = index; i < count; ++i) {
      const float sum = __fmul_rn(sum_one<kIn>(partials, i), scale);
      squares += static_cast<double>(sum) * static_cast<double>(sum);
      if constexpr (kOut != kNothing) store_one<static_cast<ElementType>(kOut)>(out, i, sum);
    }
  }
  if (partial_sums != nullptr) {
    const double total = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) partial_sums[blockIdx.x] = total;
  }
}

__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(const double* partial_sums, int64_t count, DeviceGradientStats* stats) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kReduceThreads) sum += partial_sums[i];
  const double total = block_sum<kReduceThreads>(sum);
  if (threadIdx.x == 0) *stats = {total, isfinite(total) ? 1 : 0};
}

__global__ void combine_kernel(const DeviceGradientStats* stats, int64_t count, DeviceGradientStats* out) {
  DeviceGradientStats total{0, 1};
  for (int64_t i = 0; i < count; ++i) {
    total.sum_of_squares += stats[i].sum_of_squares;
    total.finite &= stats[i].finite;
  }
  *out = total;
}

int64_t blocks_touched(int64_t begin, int64_t end) {
  return begin >= end ? 0 : (end + kBlockParameters - 1) / kBlockParameters - begin / kBlockParameters;
}

template <auto kKernel, typename... Arguments>
void launch(int64_t blocks, cudaStream_t stream, Arguments... arguments) {
  kKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments...);
}

/// Calls choose(ElementType constant) for a type known at run time.
template <typename Choose>
void with_type(ElementType type, Choose choose) {
  if (type == ElementType::kBF16)
    choose(std::integral_constant<ElementType, ElementType::kBF16>{});
  else
    choose(std::integral_constant<ElementType, ElementType::kFP32>{});
}

void reduce(const double* partial_sums, int64_t count, DeviceGradientStats* stats, cudaStream_t stream) {
  if (partial_sums == nullptr || stats == nullptr) return;
  reduce_kernel<<<1, kReduceThreads, 0, stream>>>(partial_sums, count, stats);
  check_launch("sum of squares");
}

/// Calls visit(begin, end, decays) for the pieces of [begin, end) with and without decay.
template <typename Visit>
void for_each_decay_piece(int64_t begin, int64_t end, std::span<const ElementRange> without_decay, Visit visit) {
  for (const ElementRange& range : without_decay) {
    if (range.end <= begin) continue;
    if (range.begin >= end) break;
    if (range.begin > begin) visit(begin, range.begin, true);
    const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (from < to) visit(from, to, false);
    begin = to;
  }
  if (begin < end) visit(begin, end, true);
}

}  // namespace

int64_t partial_sum_count(int64_t begin, int64_t end, std::span<const ElementRange> without_decay) {
  int64_t count = 0;
  for_each_decay_piece(begin, end, without_decay, [&](int64_t from, int64_t to, bool) { count += blocks_touched(from, to); });
  return count;
}

void adamw_update_cuda(const AdamWDeviceJob& job, int64_t begin, int64_t end, cudaStream_t stream) {
  OOM_CHECK(begin >= 0 && begin <= end && end <= job.state.count(), "elements ", begin, " to ", end, " of a shard of ", job.state.count());
  OOM_CHECK(job.gradient_sum_of_squares == nullptr || job.partial_sums == nullptr, "an update that may change nothing has no norm to tell");
  UpdateArguments arguments{job.state.data(), device_partials(job.gradients), adamw_constants(job.step), job.gradient_scale,
                            job.device_gradient_scale, job.gradient_sum_of_squares, job.publish.data, job.partial_sums, 0, 0};
  const float decay = arguments.constants.decay;
  int64_t sums = 0;
  for_each_decay_piece(begin, end, job.without_decay, [&](int64_t from, int64_t to, bool decays) {
    const int64_t blocks = blocks_touched(from, to);
    arguments.begin = from;
    arguments.end = to;
    arguments.constants.decay = decays ? decay : -0.0f;
    arguments.partial_sums = job.partial_sums ? job.partial_sums + sums : nullptr;
    with_type(job.gradients.type, [&](auto gradient) {
      if (job.publish.data == nullptr)
        launch<update_kernel<gradient(), kNothing>>(blocks, stream, arguments);
      else
        with_type(job.publish.type, [&](auto published) { launch<update_kernel<gradient(), static_cast<int>(published())>>(blocks, stream, arguments); });
    });
    check_launch("AdamW");
    sums += blocks;
  });
  reduce(job.partial_sums, sums, job.stats, stream);
}

void publish_weights_cuda(const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish, cudaStream_t stream) {
  OOM_CHECK(begin >= 0 && begin <= end && end <= state.count(), "elements ", begin, " to ", end, " of a shard of ", state.count());
  OOM_CHECK(publish.data != nullptr, "nowhere to publish to");
  if (begin == end) return;
  with_type(publish.type, [&](auto type) {
    launch<publish_kernel<type()>>(blocks_touched(begin, end), stream, static_cast<const float*>(state.data()), begin, end, publish.data);
  });
  check_launch("publishing weights");
}

void sum_of_squares_cuda(ElementType type, const void* data, int64_t count, float scale, double* partial_sums, DeviceGradientStats* stats,
                         cudaStream_t stream) {
  OOM_CHECK(partial_sums != nullptr && stats != nullptr, "a sum of squares needs scratch and a place to go");
  const Partials partials = device_partials({type, {&data, 1}});
  if (count > 0) {
    with_type(type, [&](auto in) {
      launch<sum_kernel<in(), kNothing>>(blocks_touched(0, count), stream, partials, count, scale, static_cast<void*>(nullptr), partial_sums);
    });
    check_launch("sum of squares");
  }
  reduce(partial_sums, blocks_touched(0, count), stats, stream);
}

void sum_partials_cuda(const Gradients& partials, int64_t count, ElementType out_type, void* out, double* partial_sums, DeviceGradientStats* stats,
                       cudaStream_t stream) {
  OOM_CHECK(reinterpret_cast<uintptr_t>(out) % 16 == 0, "the sum's target is not 16-byte aligned");
  const Partials in_partials = device_partials(partials);
  if (count > 0) {
    with_type(partials.type, [&](auto in) {
      with_type(out_type, [&](auto to) {
        launch<sum_kernel<in(), static_cast<int>(to())>>(blocks_touched(0, count), stream, in_partials, count, 1.0f, out, partial_sums);
      });
    });
    check_launch("sum of partials");
  }
  reduce(partial_sums, blocks_touched(0, count), stats, stream);
}

void combine_stats_cuda(const DeviceGradientStats* stats, int64_t count, DeviceGradientStats* out, cudaStream_t stream) {
  combine_kernel<<<1, 1, 0, stream>>>(stats, count, out);
  check_launch("combining sums of squares");
}

}  // namespace oom::optim
