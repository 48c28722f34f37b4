/// What kernels share: 16-byte loads and stores into FP32 registers, sums over warps and blocks, dispatch over types, launch checks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "oom/error.h"
#include "ops/element.h"

namespace oom::ops {

using BFloat16 = __nv_bfloat16;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BFloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return __float2bfloat16_rn(x);
}
/// Rounds to T and back.
template <typename T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

/// Reads N consecutive elements; N = 8 needs a 16-byte boundary.
template <typename T, int N>
__device__ void load(const T* from, float (&to)[N]) {
  static_assert(N == 1 || N == kVectorElements);
  if constexpr (N == 1) {
    to[0] = to_float(from[0]);
  } else if constexpr (std::is_same_v<T, float>) {
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  } else {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const unsigned int words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

template <typename T, int N>
__device__ void store(T* to, const float (&from)[N]) {
  static_assert(N == 1 || N == kVectorElements);
  if constexpr (N == 1) {
    to[0] = from_float<T>(from[0]);
  } else if constexpr (std::is_same_v<T, float>) {
    reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    unsigned int words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      words[i] = *reinterpret_cast<const unsigned int*>(&pair);
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// The same for parameters, whose type need not be the activations'.
template <int N>
__device__ void load(const void* from, Element element, int64_t index, float (&to)[N]) {
  if (element == Element::kFloat32)
    load(static_cast<const float*>(from) + index, to);
  else
    load(static_cast<const BFloat16*>(from) + index, to);
}
__device__ inline float read(const void* from, Element element, int64_t index) {
  return element == Element::kFloat32 ? static_cast<const float*>(from)[index] : to_float(static_cast<const BFloat16*>(from)[index]);
}
__device__ inline void write(void* to, Element element, int64_t index, float value) {
  if (element == Element::kFloat32)
    static_cast<float*>(to)[index] = value;
  else
    static_cast<BFloat16*>(to)[index] = from_float<BFloat16>(value);
}
__device__ inline void add_to(const Sink& sink, int64_t index, float value) {
  write(sink.data, sink.element, index, sink.accumulate ? read(sink.data, sink.element, index) + value : value);
}

/// Sums over a warp; every lane gets the result, in one fixed order.
template <typename Value>
__device__ Value warp_sum(Value value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

/// Sums over a group: a warp, or the whole block of `kThreads`; every thread gets the result. A block's threads must all arrive.
template <int kThreads, typename Value>
__device__ Value group_sum(Value value) {
  value = warp_sum(value);
  if constexpr (kThreads > 32) {
    __shared__ Value warps[kThreads / 32];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = warps[0];
#pragma unroll
    for (int w = 1; w < kThreads / 32; ++w) value += warps[w];
    __syncthreads();
  }
  return value;
}

/// Calls `body` with a value of the element's device type.
template <typename Body>
void with_device_type(Element element, Body&& body) {
  if (element == Element::kFloat32)
    body(float{});
  else
    body(BFloat16{});
}
/// Calls `body` with a value of the element's device type and the elements a thread moves at once.
template <typename Body>
void with_vectors(Element element, bool vectors, Body&& body) {
  with_device_type(element, [&](auto tag) {
    if (vectors)
      body(tag, std::integral_constant<int, kVectorElements>{});
    else
      body(tag, std::integral_constant<int, 1>{});
  });
}

inline unsigned int blocks_for(int64_t items, int64_t per_block) { return static_cast<unsigned int>((items + per_block - 1) / per_block); }

inline void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw DeviceError(cat("CUDA kernel ", kernel, " was not launched: ", cudaGetErrorString(status)));
}

}  // namespace oom::ops
