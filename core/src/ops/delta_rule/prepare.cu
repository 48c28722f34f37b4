/// Gates, coupling and scores of every tile: no tile waits for another here.
#include "ops/delta_rule/block.cuh"

namespace oom::ops::delta_rule {
namespace {

constexpr int kThreads = 128;  // a warp for each 16 rows
constexpr int kPitch = kTokens + 4;  // floats a row: rows begin on 16 bytes, columns fall into different banks
constexpr int kSharedBytes = 2 * kTokens * kPitch * 4 + kGateFloats * 4;  // the first part holds Q and K before N and P

/// P's block of rows and columns [first, first + 16): (I + N B) P = N, row by row, a column each lane.
__device__ void solve_diagonal(float* p, const float* n, const float* beta, int first) {
  const int column = static_cast<int>(threadIdx.x) & 15;
  float scaled[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float* row = n + (first + i) * kPitch + first;
    float value = i > column ? row[column] : 0.0f;
#pragma unroll
    for (int m = 0; m < i; ++m) value -= row[m] * scaled[m];
    scaled[i] = value * beta[first + i];
    if ((threadIdx.x & 16) == 0) p[(first + i) * kPitch + first + column] = value;
  }
}

/// Joins P's diagonal blocks of kSize at `first`: with C the block of N below the first, X = (I - P2 B2) C (I - B1 P1) is P's. kThreads kSize / 32 threads take one join;
/// `thread` counts among them, each has a column and kRows rows. Every thread of the block must arrive.
template <int kSize>
__device__ void join(float* p, const float* n, const float* beta, int first, int thread) {
  constexpr int kRows = kSize * kSize / (kThreads * kSize / 32);
  const int column = thread % kSize, row = thread / kSize * kRows;
  const float* c = n + (first + kSize + row) * kPitch + first;
  float* x = p + (first + kSize + row) * kPitch + first + column;
  float value[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) value[i] = c[i * kPitch + column];
#pragma unroll 2
  for (int m = 0; m < kSize; m += 4) {
    const float4 b = *reinterpret_cast<const float4*>(beta + first + m);
    const float* above = p + (first + m) * kPitch + first + column;
    const float upper[4] = {b.x * above[0], b.y * above[kPitch], b.z * above[2 * kPitch], b.w * above[3 * kPitch]};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 left = *reinterpret_cast<const float4*>(c + i * kPitch + m);
      value[i] -= left.x * upper[0] + left.y * upper[1] + left.z * upper[2] + left.w * upper[3];
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) x[i * kPitch] = value[i];
  __syncthreads();
  const float* lower = p + (first + kSize + row) * kPitch + first + kSize;
#pragma unroll 2
  for (int m = 0; m < kSize; m += 4) {
    const float4 b = *reinterpret_cast<const float4*>(beta + first + kSize + m);
    const float* above = p + (first + kSize + m) * kPitch + first + column;
    const float y[4] = {b.x * above[0], b.y * above[kPitch], b.z * above[2 * kPitch], b.w * above[3 * kPitch]};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 left = *reinterpret_cast<const float4*>(lower + i * kPitch + m);
      value[i] -= left.x * y[0] + left.y * y[1] + left.z * y[2] + left.w * y[3];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows; ++i) x[i * kPitch] = value[i];
  __syncthreads();
}

/// Gates of one head's tile, to shared memory and to the slot.
__device__ void make_gates(float* gates, const Pass& pass, const TileSpan& tile, int64_t head, int64_t slot) {
  const int token = static_cast<int>(threadIdx.x);
  if (token < kTokens) {
    const bool valid = token < tile.count;
    const int64_t at = (tile.begin + (valid ? token : 0)) * pass.in.shape.value_heads + head;
    float decay = valid ? pass.in.log_decay[at] : 0.0f;
    const int lane = token & 31;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, decay, distance);
      if (lane >= distance) decay += before;
    }
    gates[kGateDecay + token] = decay;
    gates[kGateBeta + token] = valid ? pass.in.beta[at] : 0.0f;
  }
  __syncthreads();
  if (token >= 32 && token < kTokens) gates[kGateDecay + token] += gates[kGateDecay + 31];
  __syncthreads();
  if (token < kTokens) {
    const float decay = gates[kGateDecay + token];
    const float from_start = expf(decay), to_end = expf(gates[kGateDecay + kTokens - 1] - decay);
    gates[kGateFromStart + token] = from_start;
    gates[kGateToEnd + token] = to_end;
    float* out = pass.slots.gates + slot * kGateFloats + token;
    out[kGateDecay] = decay;
    out[kGateFromStart] = from_start;
    out[kGateToEnd] = to_end;
    out[kGateBeta] = gates[kGateBeta + token];
  }
}

/// Block: a tile and a key head, with the value heads that it serves.
__global__ void __launch_bounds__(kThreads, 4) prepare_kernel(Pass pass) {
  const Tile<kDim> q{reinterpret_cast<BFloat16*>(shared_bytes)}, k{q.data + kTokens * kDim};
  float* n = reinterpret_cast<float*>(shared_bytes);
  float* p = n + kTokens * kPitch;
  float* gates = p + kTokens * kPitch;
  const int tile_index = pass.tile_begin + static_cast<int>(blockIdx.x);
  const TileSpan tile = pass.tiles[tile_index];
  const int64_t key_head = blockIdx.y, served = pass.in.shape.value_heads / pass.in.shape.key_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, group = (static_cast<int>(threadIdx.x) % 32) / 4, quad = static_cast<int>(threadIdx.x) % 4;
  copy_tile<kTokens, kDim, kThreads>(k, head_rows(pass.in.k, tile.begin, key_head), pass.in.k.stride, tile.count);
  copy_tile<kTokens, kDim, kThreads>(q, head_rows(pass.in.q, tile.begin, key_head), pass.in.q.stride, tile.count);
  commit_copies();
  wait_copies<0>();
  __syncthreads();

  float keys[8][4] = {}, queries[8][4] = {};  // K K^T and Q K^T, 16 rows a warp; what lies above the diagonal's blocks is never made
#pragma unroll
  for (int step = 0; step < kDim; step += 16) {
    uint32_t a_keys[4], a_queries[4];
    k.load_a(a_keys, 16 * warp, step);
    q.load_a(a_queries, 16 * warp, step);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      if (block > warp) continue;
      uint32_t b[4];
      k.load_b_transposed(b, 16 * block, step);
      multiply_add_pair(keys[2 * block], keys[2 * block + 1], a_keys, b);
      multiply_add_pair(queries[2 * block], queries[2 * block + 1], a_queries, b);
    }
  }
  __syncthreads();
#pragma unroll
  for (int block = 0; block < 8; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp + group + 8 * (i / 2), column = 8 * block + 2 * quad + i % 2;
      n[row * kPitch + column] = row > column ? keys[block][i] : 0.0f;
      p[row * kPitch + column] = 0;  // what lies above the diagonal stays so
    }

  for (int64_t head = key_head * served; head < (key_head + 1) * served; ++head) {
    const int64_t slot = slot_of(pass, tile_index, static_cast<int>(head));
    make_gates(gates, pass, tile, head, slot);
    __syncthreads();
    const float* beta = gates + kGateBeta;
    solve_diagonal(p, n, beta, 16 * warp);
    __syncthreads();
    join<16>(p, n, beta, 32 * (warp / 2), static_cast<int>(threadIdx.x) % 64);
    join<32>(p, n, beta, 0, static_cast<int>(threadIdx.x));

    BFloat16* coupling = pass.slots.coupling + slot * kTokens * kTokens;
#pragma unroll
    for (int i = 0; i < kTokens * kTokens / 8 / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = item / 8, column = item % 8 * 8;
      const float decay = gates[kGateDecay + row];
      float value[8], before[8];
      load(p + row * kPitch + column, value);
      load(gates + kGateDecay + column, before);
#pragma unroll
      for (int c = 0; c < 8; ++c) value[c] = row > column + c ? __expf(decay - before[c]) * value[c] : 0.0f;
      store(coupling + row * kTokens + column, value);
    }
    BFloat16* scores = pass.slots.scores + slot * kTokens * kTokens;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * warp + group + 8 * half;
#pragma unroll
      for (int blocks = 0; blocks < 8; blocks += 4) {
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float value[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = 8 * (blocks + j) + 2 * quad + e;
            value[e] = row >= column ? pass.in.shape.scale * __expf(gates[kGateDecay + row] - gates[kGateDecay + column]) * queries[blocks + j][2 * half + e] : 0.0f;
          }
          word[j] = pack(value[0], value[1]);
        }
        *reinterpret_cast<uint4*>(scores + row * kTokens + 8 * (blocks + quad)) = transpose_words(word[0], word[1], word[2], word[3]);
      }
    }
    __syncthreads();  // gates and P are the next head's
  }
}

}  // namespace

void prepare(const Pass& pass, Stream stream) {
  const dim3 grid(static_cast<unsigned int>(pass.tile_end - pass.tile_begin), static_cast<unsigned int>(pass.in.shape.key_heads));
  start(prepare_kernel, "delta_rule_prepare", grid, kThreads, kSharedBytes, stream, pass);
}

}  // namespace oom::ops::delta_rule
