#include "ops/reduce_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kItemsPerThread = 8;

/// Items: whole vectors, then the elements left over one by one.
__host__ __device__ int64_t items_of(int64_t size, int n) { return size / n + size % n; }

/// Loads item `item` of `array`; returns how many of the N values it holds.
template <typename T, int N>
__device__ int load_item(const Array& array, int64_t item, float (&value)[N]) {
  const T* data = static_cast<const T*>(array.data);
  const int64_t whole = array.size / N;
  if (item < whole) {
    load(data + item * N, value);
    return N;
  }
  value[0] = to_float(data[whole * N + item - whole]);
  return 1;
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) whole_sum_kernel(WholeSum a) {
  const int64_t items = items_of(a.x.size, N);
  double sum = 0;
  for (int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x; item < items; item += gridDim.x * int64_t{kThreads}) {
    float value[N];
    const int held = load_item<T>(a.x, item, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= held) break;
      const double exact = value[i];
      sum += a.squares ? exact * exact : exact;
    }
  }
  sum = group_sum<kThreads>(sum);
  if (threadIdx.x == 0) a.partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) finish_sum_kernel(WholeSum a, int blocks) {
  double sum = 0;
  for (int b = threadIdx.x; b < blocks; b += kThreads) sum += a.partials[b];
  sum = group_sum<kThreads>(sum);
  if (threadIdx.x == 0) *a.total += sum;
}

template <typename Out, typename Source, int N>
__global__ void sum_partials_kernel(SumPartials a) {
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (item >= items_of(a.out.size, N)) return;
  float sum[N], value[N];
  int held;
  int next = 0;
  if (a.accumulate) {
    held = load_item<Out>(a.out, item, sum);
  } else {
    held = load_item<Source>(a.sources[0], item, sum);
    next = 1;
  }
  for (; next < a.count; ++next) {
    load_item<Source>(a.sources[next], item, value);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < held) sum[i] += value[i];
  }
  Out* out = static_cast<Out*>(a.out.data);
  const int64_t whole = a.out.size / N;
  if (held == N)
    store(out + item * N, sum);
  else
    out[whole * N + item - whole] = from_float<Out>(sum[0]);
}

bool aligned(const Array& array) { return reinterpret_cast<uintptr_t>(array.data) % 16 == 0; }

}  // namespace

void whole_sum_cuda(const WholeSum& a, Stream stream) {
  // The order of the sum follows from the number of blocks: of the size alone.
  const int64_t wanted = (a.x.size + kThreads * kVectorElements * kItemsPerThread - 1) / (kThreads * kVectorElements * kItemsPerThread);
  const unsigned int blocks = wanted < kReduceBlocks ? static_cast<unsigned int>(wanted) : kReduceBlocks;
  with_vectors(a.x.element, aligned(a.x), [&](auto tag, auto n) {
    whole_sum_kernel<decltype(tag), n()><<<blocks, kThreads, 0, stream>>>(a);
  });
  check_launch("whole_sum");
  finish_sum_kernel<<<1, kThreads, 0, stream>>>(a, static_cast<int>(blocks));
  check_launch("finish_sum");
}

void sum_partials_cuda(const SumPartials& a, Stream stream) {
  bool vectors = aligned(a.out);
  for (int s = 0; s < a.count; ++s) vectors = vectors && aligned(a.sources[s]);
  with_vectors(a.sources[0].element, vectors, [&](auto source, auto n) {
    with_device_type(a.out.element, [&](auto out) {
      sum_partials_kernel<decltype(out), decltype(source), n()>
          <<<blocks_for(items_of(a.out.size, n()), kThreads), kThreads, 0, stream>>>(a);
    });
  });
  check_launch("sum_partials");
}

}  // namespace oom::ops
