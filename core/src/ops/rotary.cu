#include "ops/rotary_cuda.h"

#include <algorithm>

#include "oom/error.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;

struct Frequencies {
  float inverse[kMostFrequencies];
};

template <typename T>
__global__ void table_kernel(RotaryTableFill a, const __grid_constant__ Frequencies frequencies) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.tokens * a.half) return;
  const float angle = static_cast<float>(a.positions[item / a.half]) * frequencies.inverse[item % a.half];
  static_cast<T*>(a.cosine)[item] = from_float<T>(cosf(angle) * a.scaling);
  static_cast<T*>(a.sine)[item] = from_float<T>(sinf(angle) * a.scaling);
}

/// A thread turns N pairs, or copies N elements beyond them.
template <typename T, int N>
__global__ void rotate_kernel(Rotation a, int64_t pairs, int64_t items_per_row) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= a.x.count * items_per_row) return;
  const int64_t row = item / items_per_row;
  const int64_t part = item % items_per_row;
  const T* x = a.x.at<T>(row);
  T* y = a.y.at<T>(row);
  if (part >= pairs) {
    const int64_t c = 2 * a.half + (part - pairs) * N;
    float value[N];
    load(x + c, value);
    store(y + c, value);
    return;
  }
  const int64_t c = part * N;
  const int64_t entry = row / a.heads * a.half + c;
  float first[N], second[N], cosine[N], sine[N];
  load(x + c, first);
  load(x + c + a.half, second);
  load(static_cast<const T*>(a.cosine) + entry, cosine);
  load(static_cast<const T*>(a.sine) + entry, sine);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = a.inverse ? -sine[i] : sine[i];
    const float low = first[i] * cosine[i] - second[i] * s;
    second[i] = second[i] * cosine[i] + first[i] * s;
    first[i] = low;
  }
  store(y + c, first);
  store(y + c + a.half, second);
}

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

void rotary_table_cuda(const RotaryTableFill& a, Stream stream) {
  if (a.half == 0) return;
  OOM_CHECK_LE(a.half, kMostFrequencies, "rotary frequencies of one launch");
  Frequencies frequencies;
  std::copy_n(a.inverse, a.half, frequencies.inverse);
  with_device_type(a.element, [&](auto tag) {
    table_kernel<decltype(tag)><<<blocks_for(a.tokens * a.half, kThreads), kThreads, 0, stream>>>(a, frequencies);
  });
  check_launch("rotary_table");
}

void rotate_cuda(const Rotation& a, Stream stream) {
  const bool vectors = vectorizable(a.x) && vectorizable(a.y) && a.half % kVectorElements == 0 && aligned(a.cosine) && aligned(a.sine);
  with_vectors(a.x.element, vectors, [&](auto tag, auto n) {
    const int64_t pairs = a.half / n();
    const int64_t items = pairs + (a.x.data == a.y.data ? 0 : (a.x.width - 2 * a.half) / n());
    if (items == 0) return;
    rotate_kernel<decltype(tag), n()><<<blocks_for(a.x.count * items, kThreads), kThreads, 0, stream>>>(a, pairs, items);
  });
  check_launch("rotate");
}

}  // namespace oom::ops
