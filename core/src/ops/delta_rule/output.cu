/// Outputs of every tile from its entry state and its deltas.
#include "ops/delta_rule/block.cuh"

namespace oom::ops::delta_rule {
namespace {

constexpr int kThreads = 128;  // four warps, each 32 rows and 64 columns
constexpr int kSharedBytes = (kTokens * kDim + kTokens * kTokens + kDim * kDim + kDim * kTokens) * 2;

/// Block: a tile and a value head.
__global__ void __launch_bounds__(kThreads) output_kernel(Pass pass, BFloat16* out) {
  const Tile<kDim> q{reinterpret_cast<BFloat16*>(shared_bytes)}, state{q.data + kTokens * kDim};
  const Tile<kTokens> scores{state.data + kDim * kDim}, deltas{scores.data + kTokens * kTokens};
  const int64_t head = blockIdx.x, value_heads = pass.in.shape.value_heads;
  const int tile_index = pass.tile_begin + static_cast<int>(blockIdx.y);
  const TileSpan tile = pass.tiles[tile_index];
  const int64_t slot = slot_of(pass, tile_index, static_cast<int>(head));
  copy_tile<kTokens, kDim, kThreads>(q, head_rows(pass.in.q, tile.begin, head / (value_heads / pass.in.shape.key_heads)), pass.in.q.stride, tile.count);
  copy_tile<kDim, kDim, kThreads>(state, pass.slots.states + slot * kDim * kDim, kDim, kDim);
  commit_copies();
  copy_tile<kTokens, kTokens, kThreads>(scores, pass.slots.scores + slot * kTokens * kTokens, kTokens, kTokens);
  copy_tile<kDim, kTokens, kThreads>(deltas, pass.slots.errors + slot * kDim * kTokens, kTokens, kDim);
  commit_copies();

  const int warp = static_cast<int>(threadIdx.x) / 32, group = (static_cast<int>(threadIdx.x) % 32) / 4, quad = static_cast<int>(threadIdx.x) % 4;
  const int first_row = warp / 2 * 32, first_column = warp % 2 * 64;
  float x[2][8][4] = {};
  wait_copies<1>();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kDim; step += 16) {
    uint32_t a[2][4];
    q.load_a(a[0], first_row, step);
    q.load_a(a[1], first_row + 16, step);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      uint32_t b[4];
      state.load_b_transposed(b, first_column + 16 * block, step);
      multiply_add_pair(x[0][2 * block], x[0][2 * block + 1], a[0], b);
      multiply_add_pair(x[1][2 * block], x[1][2 * block + 1], a[1], b);
    }
  }
  const float* from_start = pass.slots.gates + slot * kGateFloats + kGateFromStart;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float factor = pass.in.shape.scale * from_start[first_row + group + 8 * i];
#pragma unroll
    for (auto& fragment : x[i / 2]) fragment[2 * (i % 2)] *= factor, fragment[2 * (i % 2) + 1] *= factor;
  }
  wait_copies<0>();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kTokens; step += 16) {
    if (step > first_row + 16) continue;  // nothing right of the diagonal
    uint32_t a[2][4];
    scores.load_a(a[0], first_row, step);
    scores.load_a(a[1], first_row + 16, step);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      uint32_t b[4];
      deltas.load_b_transposed(b, first_column + 16 * block, step);
      multiply_add_pair(x[0][2 * block], x[0][2 * block + 1], a[0], b);
      multiply_add_pair(x[1][2 * block], x[1][2 * block + 1], a[1], b);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + group + 8 * i;
    BFloat16* to = out + ((tile.begin + row) * value_heads + head) * kDim + first_column + 8 * quad;
#pragma unroll
    for (int blocks = 0; blocks < 8; blocks += 4) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) word[j] = pack(x[i / 2][blocks + j][2 * (i % 2)], x[i / 2][blocks + j][2 * (i % 2) + 1]);
      const uint4 piece = transpose_words(word[0], word[1], word[2], word[3]);
      if (row < tile.count) *reinterpret_cast<uint4*>(to + 8 * blocks) = piece;
    }
  }
}

}  // namespace

void write_output(const Pass& pass, BFloat16* out, Stream stream) {
  const dim3 grid(static_cast<unsigned int>(pass.in.shape.value_heads), static_cast<unsigned int>(pass.tile_end - pass.tile_begin));
  start(output_kernel, "delta_rule_output", grid, kThreads, kSharedBytes, stream, pass, out);
}

}  // namespace oom::ops::delta_rule
