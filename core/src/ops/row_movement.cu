#include "ops/permutation_cuda.h"
#include "ops/vector.cuh"

namespace oom::ops {
namespace {

/// A block a row at a time; Word is the widest piece that rows and strides are multiples of.
template <typename Word>
__global__ void copy_rows_kernel(RowCopy a) {
  const int64_t words = a.row_bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t i = blockIdx.x * int64_t{blockDim.y} + threadIdx.y; i < a.count; i += gridDim.x * int64_t{blockDim.y}) {
    const int64_t from = a.source != nullptr ? a.source[i] : i;
    const int64_t to = a.target != nullptr ? a.target[i] : i;
    if (to < 0) continue;
    Word* out = reinterpret_cast<Word*>(static_cast<char*>(a.out) + to * a.out_stride_bytes);
    if (from < 0) {
      for (int64_t w = threadIdx.x; w < words; w += blockDim.x) out[w] = Word{};
    } else {
      const Word* x = reinterpret_cast<const Word*>(static_cast<const char*>(a.x) + from * a.x_stride_bytes);
      for (int64_t w = threadIdx.x; w < words; w += blockDim.x) out[w] = x[w];
    }
  }
}

template <typename Word>
void launch_copy(const RowCopy& a, Stream stream) {
  const int64_t words = a.row_bytes / static_cast<int64_t>(sizeof(Word));
  unsigned int across = 32;
  while (across < 256 && across < words) across *= 2;
  const unsigned int rows = 256 / across;
  const int64_t blocks = (a.count + rows - 1) / rows;
  copy_rows_kernel<Word><<<blocks_for(blocks < (1 << 20) ? blocks : (1 << 20), 1), dim3(across, rows), 0, stream>>>(a);
}

template <typename T, int N>
__global__ void combine_kernel(Combine a) {
  const int64_t token = blockIdx.x;
  const int32_t* row_of = a.row_of + token * a.top_k;
  const float* weights = a.weights != nullptr ? a.weights + token * a.top_k : nullptr;
  for (int64_t c = threadIdx.x * N; c < a.y.width; c += blockDim.x * N) {
    float sum[N] = {};
#pragma unroll 4
    for (int64_t k = 0; k < a.top_k; ++k) {
      float row[N];
      load(a.rows.at<T>(row_of[k]) + c, row);
      const float weight = weights != nullptr ? weights[k] : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += weight * row[i];
    }
    if (a.shared.data != nullptr) {
      float shared[N];
      load(a.shared.at<T>(token) + c, shared);
      const float scale = a.shared_scale.data != nullptr ? read(a.shared_scale.data, a.shared_scale.element, token) : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += scale * shared[i];
    }
    if (a.residual.data != nullptr) {
      float residual[N];
      load(a.residual.at<T>(token) + c, residual);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += residual[i];
    }
    store(a.y.at<T>(token) + c, sum);
  }
}

__global__ void move_choices_kernel(ChoiceMove a) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= a.choices) return;
  if (a.to_rows)
    a.to[a.row_of[i]] = a.from[i];
  else
    a.to[i] = a.from[a.row_of[i]];
}

}  // namespace

void copy_rows_cuda(const RowCopy& a, Stream stream) {
  const uint64_t bits = reinterpret_cast<uint64_t>(a.x) | reinterpret_cast<uint64_t>(a.out) | static_cast<uint64_t>(a.row_bytes) |
                        static_cast<uint64_t>(a.x_stride_bytes) | static_cast<uint64_t>(a.out_stride_bytes);
  if (bits % 16 == 0)
    launch_copy<uint4>(a, stream);
  else if (bits % 4 == 0)
    launch_copy<uint32_t>(a, stream);
  else if (bits % 2 == 0)
    launch_copy<uint16_t>(a, stream);
  else
    launch_copy<uint8_t>(a, stream);
  check_launch("copy_rows");
}

void combine_cuda(const Combine& a, Stream stream) {
  const bool vectors = vectorizable(a.rows) && vectorizable(a.residual) && vectorizable(a.shared) && vectorizable(a.y);
  with_vectors(a.y.element, vectors, [&](auto tag, auto n) {
    const int64_t needed = (a.y.width / n() + 31) / 32 * 32;
    const unsigned int threads = needed < 32 ? 32 : needed > 256 ? 256 : static_cast<unsigned int>(needed);
    combine_kernel<decltype(tag), n()><<<blocks_for(a.y.count, 1), threads, 0, stream>>>(a);
  });
  check_launch("combine");
}

void move_choices_cuda(const ChoiceMove& a, Stream stream) {
  move_choices_kernel<<<blocks_for(a.choices, 256), 256, 0, stream>>>(a);
  check_launch("move_choices");
}

}  // namespace oom::ops
