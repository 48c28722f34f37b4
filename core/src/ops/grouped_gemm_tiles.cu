#include "ops/grouped_gemm_tiles.h"

#include "ops/vector.cuh"

namespace oom::ops {
namespace {

// A block makes a kM x kN tile of one expert's result, kK deep at a time, from kStages tiles in flight. Its 8 warps lie 2 x 4, 64 x 32 each.
constexpr int kM = 128, kN = 128, kK = 32, kStages = 3, kThreads = 256;
constexpr int kWarpM = 64, kWarpN = 32;
constexpr int kTileElements = kM * kK;  // of either operand
static_assert(kM == kN);

enum class Major { kDepth, kWidth };  // which index of an operand is contiguous: the one summed over, or the result's

// One operand of a product: `width` x `depth` elements of which `width_end` and `depth_end` exist.
struct Operand {
  const BFloat16* data;
  int64_t pitch;
  int width_end, depth_end;
};

__device__ unsigned shared_address(const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

__device__ void copy_16_bytes(BFloat16* to, const BFloat16* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0));
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

// Tiles in shared memory are rows of 16-byte chunks, permuted so that eight rows of one chunk column lie in different banks.
template <Major kMajor>
__device__ int chunk_at(int row, int chunk) {
  if constexpr (kMajor == Major::kDepth) return row * (kK / 8) + (chunk ^ ((row >> 1) & 3));  // 128 rows of 4 chunks
  return row * (kM / 8) + (chunk ^ (row & 7));                                                 // 32 rows of 16 chunks
}

template <Major kMajor>
__device__ void load_tile(BFloat16* tile, const Operand& operand, int width_begin, int depth_begin) {
  constexpr int kRowChunks = kMajor == Major::kDepth ? kK / 8 : kM / 8;
#pragma unroll
  for (int i = 0; i < kTileElements / 8 / kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = index / kRowChunks, chunk = index % kRowChunks;
    const int width = width_begin + (kMajor == Major::kDepth ? row : chunk * 8);
    const int depth = depth_begin + (kMajor == Major::kDepth ? chunk * 8 : row);
    const bool exists = width < operand.width_end && depth < operand.depth_end;
    const int64_t offset = kMajor == Major::kDepth ? width * operand.pitch + depth : depth * operand.pitch + width;
    copy_16_bytes(tile + chunk_at<kMajor>(row, chunk) * 8, operand.data + (exists ? offset : 0), exists);
  }
}

template <bool kTransposed>
__device__ void load_matrices(unsigned (&to)[4], const BFloat16* from) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)));
}

__device__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of an operand, of 16 widths by 16 depths, in the order (width, depth) = (0,0) (8,0) (0,8) (8,8) for the left operand
// and (0,0) (0,8) (8,0) (8,8) for the right one: what mma.m16n8k16 takes.
template <Major kMajor, bool kLeft>
__device__ void load_fragment(unsigned (&to)[4], const BFloat16* tile, int width, int depth) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int second = lane / 8 % 2 * 8, third = lane / 16 * 8;
  const int w = width + (kLeft ? second : third), d = depth + (kLeft ? third : second);
  if constexpr (kMajor == Major::kDepth)
    load_matrices<false>(to, tile + chunk_at<kMajor>(w + lane % 8, d / 8) * 8);
  else
    load_matrices<true>(to, tile + chunk_at<kMajor>(d + lane % 8, w / 8) * 8);
}

template <Major kLeftMajor, Major kRightMajor>
__device__ void multiply_tile(float (&sums)[4][4][4], BFloat16* shared, const Operand& left, const Operand& right, int m_begin, int n_begin) {
  const int depth_tiles = (left.depth_end + kK - 1) / kK;
  const int warp = static_cast<int>(threadIdx.x) / 32, warp_m = warp / 4 * kWarpM, warp_n = warp % 4 * kWarpN;
  const auto fetch = [&](int depth_tile) {
    if (depth_tile < depth_tiles) {
      BFloat16* stage = shared + depth_tile % kStages * 2 * kTileElements;
      load_tile<kLeftMajor>(stage, left, m_begin, depth_tile * kK);
      load_tile<kRightMajor>(stage + kTileElements, right, n_begin, depth_tile * kK);
    }
    commit_copies();  // also when empty: the count of groups is what is waited for
  };
  for (int t = 0; t < kStages - 1; ++t) fetch(t);
  for (int t = 0; t < depth_tiles; ++t) {
    wait_copies<kStages - 2>();
    __syncthreads();  // tile t is there for all, and all are done with the tile that the next fetch replaces
    fetch(t + kStages - 1);
    const BFloat16* left_tile = shared + t % kStages * 2 * kTileElements;
    const BFloat16* right_tile = left_tile + kTileElements;
#pragma unroll
    for (int depth = 0; depth < kK; depth += 16) {
      unsigned a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_fragment<kLeftMajor, true>(a[i], left_tile, warp_m + 16 * i, depth);
#pragma unroll
      for (int j = 0; j < 2; ++j) load_fragment<kRightMajor, false>(b[j], right_tile, warp_n + 16 * j, depth);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

__device__ void store_pair(BFloat16* to, float first, float second) { *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(first, second); }
__device__ void store_pair(float* to, float first, float second) { *reinterpret_cast<float2*>(to) = make_float2(first, second); }

template <typename T>
__device__ void store_tile(const float (&sums)[4][4][4], T* out, int64_t pitch, int m_begin, int n_begin, int m_end, int n_end, bool accumulate) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = m_begin + warp / 4 * kWarpM + 16 * i + 8 * half + lane / 4;
        const int n = n_begin + warp % 4 * kWarpN + 8 * j + lane % 4 * 2;
        if (m >= m_end || n >= n_end) continue;
        T* to = out + m * pitch + n;
        float first = sums[i][j][2 * half], second = sums[i][j][2 * half + 1];
        if (accumulate) first += to_float(to[0]), second += to_float(to[1]);
        store_pair(to, first, second);
      }
}

struct RowTile {
  int expert = -1;
  int begin = 0;   // first row of the expert
  int length = 0;  // rows of the expert
  int tile = 0;    // of the expert
};

// The `index`-th tile of kM rows when every expert's rows are cut from its first one on. One warp.
__device__ RowTile find_row_tile(const ExpertRows& rows, int index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0, before = 0; first < rows.experts; first += 32) {
    const int expert = first + lane;
    const int begin = expert == 0 || expert >= rows.experts ? 0 : rows.ends[expert - 1];
    const int length = expert < rows.experts ? rows.ends[expert] - begin : 0;
    const int tiles = (length + kM - 1) / kM;
    int up_to = tiles;  // inclusive sum over lanes
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, up_to, distance);
      if (lane >= distance) up_to += below;
    }
    const bool here = index >= before + up_to - tiles && index < before + up_to;
    const unsigned found = __ballot_sync(0xffffffffu, here);
    if (found != 0) {
      const int source = __ffs(static_cast<int>(found)) - 1;
      RowTile result{first + source, begin, length, index - (before + up_to - tiles)};
      result.begin = __shfl_sync(0xffffffffu, result.begin, source);
      result.length = __shfl_sync(0xffffffffu, result.length, source);
      result.tile = __shfl_sync(0xffffffffu, result.tile, source);
      return result;
    }
    before += __shfl_sync(0xffffffffu, up_to, 31);
  }
  return {};
}

template <Major kWeights>
__global__ void __launch_bounds__(kThreads) rows_kernel(const BFloat16* in, const BFloat16* weights, BFloat16* out, ExpertRows rows, int outputs, int inputs) {
  extern __shared__ __align__(16) BFloat16 tiles[];
  const RowTile at = find_row_tile(rows, static_cast<int>(blockIdx.y));
  if (at.expert < 0) return;
  const Operand left{in + static_cast<int64_t>(at.begin) * inputs, inputs, at.length, inputs};
  const Operand right{weights + static_cast<int64_t>(at.expert) * outputs * inputs, kWeights == Major::kDepth ? inputs : outputs, outputs, inputs};
  const int m_begin = at.tile * kM, n_begin = static_cast<int>(blockIdx.x) * kN;
  float sums[4][4][4] = {};
  multiply_tile<Major::kDepth, kWeights>(sums, tiles, left, right, m_begin, n_begin);
  store_tile(sums, out + static_cast<int64_t>(at.begin) * outputs, outputs, m_begin, n_begin, at.length, outputs, false);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) weights_kernel(const BFloat16* dy, const BFloat16* x, T* sink, ExpertRows rows, int outputs, int inputs, bool accumulate) {
  extern __shared__ __align__(16) BFloat16 tiles[];
  const int expert = static_cast<int>(blockIdx.z);
  const int begin = expert == 0 ? 0 : rows.ends[expert - 1], length = rows.ends[expert] - begin;
  if (length == 0 && accumulate) return;
  const Operand left{dy + static_cast<int64_t>(begin) * outputs, outputs, outputs, length};
  const Operand right{x + static_cast<int64_t>(begin) * inputs, inputs, inputs, length};
  const int m_begin = static_cast<int>(blockIdx.y) * kM, n_begin = static_cast<int>(blockIdx.x) * kN;
  float sums[4][4][4] = {};
  multiply_tile<Major::kWidth, Major::kWidth>(sums, tiles, left, right, m_begin, n_begin);
  store_tile(sums, sink + static_cast<int64_t>(expert) * outputs * inputs, inputs, m_begin, n_begin, outputs, inputs, accumulate);
}

constexpr size_t kSharedBytes = size_t{kStages} * 2 * kTileElements * sizeof(BFloat16);
static_assert(kSharedBytes <= 48 << 10, "what a block has without asking for more");

}  // namespace

void grouped_rows_product(const void* in, const void* weights, void* out, const ExpertRows& rows, int outputs, int inputs, bool weights_by_input, CUstream_st* stream) {
  if (rows.rows == 0 || rows.experts == 0 || outputs == 0) return;
  // As many tiles as there can be: whole ones, and one that is not whole for each expert.
  const dim3 grid(blocks_for(outputs, kN), blocks_for(rows.rows, kM) + static_cast<unsigned>(rows.experts));
  OOM_CHECK_LT(grid.y, 65536u, "tiles of rows in one grouped product");
  void (*kernel)(const BFloat16*, const BFloat16*, BFloat16*, ExpertRows, int, int) = weights_by_input ? &rows_kernel<Major::kWidth> : &rows_kernel<Major::kDepth>;
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(static_cast<const BFloat16*>(in), static_cast<const BFloat16*>(weights), static_cast<BFloat16*>(out), rows, outputs, inputs);
  check_launch("grouped_rows_product");
}

void grouped_weights_product(const void* dy, const void* x, const Sink& sink, const ExpertRows& rows, int outputs, int inputs, CUstream_st* stream) {
  if (rows.experts == 0 || outputs == 0 || inputs == 0) return;
  const dim3 grid(blocks_for(inputs, kN), blocks_for(outputs, kM), static_cast<unsigned>(rows.experts));
  with_device_type(sink.element, [&](auto tag) {
    using T = decltype(tag);
    weights_kernel<T><<<grid, kThreads, kSharedBytes, stream>>>(static_cast<const BFloat16*>(dy), static_cast<const BFloat16*>(x), static_cast<T*>(sink.data), rows, outputs, inputs,
                                                                sink.accumulate);
  });
  check_launch("grouped_weights_product");
}

}  // namespace oom::ops
