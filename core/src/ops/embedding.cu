#include <cub/device/device_radix_sort.cuh>

#include "ops/embedding_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kSegmentThreads = 128;

template <typename T, int N>
__global__ void lookup_kernel(EmbeddingForward a, int64_t vectors) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.out.count * vectors) return;
  const int64_t token = item / vectors;
  const int64_t c = item % vectors * N;
  const int64_t row = a.tokens[token] - a.begin;
  float value[N];
  if (row >= 0 && row < a.weight.count) {
    load(a.weight.at<T>(row) + c, value);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] *= a.scale;
  } else {
    if (!a.whole) return;
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = NAN;
  }
  store(a.out.at<T>(token) + c, value);
}

/// Keys are rows of the sink; tokens that do not count get the key `rows` and sort to the end.
__global__ void keys_kernel(EmbeddingBackward a, uint32_t* keys, int32_t* positions) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= a.d_out.count) return;
  const int64_t row = a.tokens[i] - a.begin;
  const bool counts = row >= 0 && row < a.rows && a.tokens[i] != a.frozen_token;
  keys[i] = static_cast<uint32_t>(counts ? row : a.rows);
  positions[i] = static_cast<int32_t>(i);
}

/// The block of a segment's first position sums the whole segment, in token order as the sort is stable.
template <typename T, int N>
__global__ void segment_sum_kernel(EmbeddingBackward a, const uint32_t* keys, const int32_t* positions) {
  const int64_t first = blockIdx.x;
  const uint32_t key = keys[first];
  if (key == a.rows || (first > 0 && keys[first - 1] == key)) return;
  const int64_t c = (blockIdx.y * int64_t{kSegmentThreads} + threadIdx.x) * N;
  if (c >= a.d_out.width) return;
  float sum[N] = {};
#pragma unroll 4
  for (int64_t i = first; i < a.d_out.count && keys[i] == key; ++i) {
    float value[N];
    load(a.d_out.at<T>(positions[i]) + c, value);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += value[j];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) add_to(a.sink, key * a.d_out.width + c + j, a.scale * sum[j]);
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw DeviceError(cat(call, " failed: ", cudaGetErrorString(status)));
}

size_t sort_bytes(int64_t tokens) {
  size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
                                        static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr), tokens),
        "sizing a sort of token ids");
  return bytes;
}

}  // namespace

void embedding_forward_cuda(const EmbeddingForward& a, Stream stream) {
  with_vectors(a.out.element, vectorizable(a.weight) && vectorizable(a.out), [&](auto tag, auto n) {
    const int64_t vectors = a.out.width / n();
    lookup_kernel<decltype(tag), n()><<<blocks_for(a.out.count * vectors, kThreads), kThreads, 0, stream>>>(a, vectors);
  });
  check_launch("embedding_forward");
}

int64_t embedding_workspace_bytes(int64_t tokens) { return 4 * aligned(4 * tokens) + aligned(static_cast<int64_t>(sort_bytes(tokens))); }

void embedding_backward_cuda(const EmbeddingBackward& a, Stream stream) {
  const int64_t count = a.d_out.count;
  const int64_t array_bytes = aligned(4 * count);
  char* workspace = static_cast<char*>(a.workspace);
  uint32_t* keys = reinterpret_cast<uint32_t*>(workspace);
  int32_t* positions = reinterpret_cast<int32_t*>(workspace + array_bytes);
  uint32_t* sorted_keys = reinterpret_cast<uint32_t*>(workspace + 2 * array_bytes);
  int32_t* sorted_positions = reinterpret_cast<int32_t*>(workspace + 3 * array_bytes);
  keys_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(a, keys, positions);
  check_launch("embedding keys");
  int bits = 1;
  while ((a.rows >> bits) != 0) ++bits;
  size_t bytes = static_cast<size_t>(a.workspace_bytes - 4 * array_bytes);
  check(cub::DeviceRadixSort::SortPairs(workspace + 4 * array_bytes, bytes, keys, sorted_keys, positions, sorted_positions, count, 0, bits, stream),
        "sorting token ids");
  const bool vectors = vectorizable(a.d_out);
  with_vectors(a.d_out.element, vectors, [&](auto tag, auto n) {
    const dim3 grid(blocks_for(count, 1), blocks_for(a.d_out.width, kSegmentThreads * n()));
    segment_sum_kernel<decltype(tag), n()><<<grid, kSegmentThreads, 0, stream>>>(a, sorted_keys, sorted_positions);
  });
  check_launch("embedding_backward");
}

}  // namespace oom::ops
