/// Gradients of every tile, once both walks have left their states.
#include "ops/delta_rule/block.cuh"

namespace oom::ops::delta_rule {
namespace {

constexpr int kWarps = 16;  // four of 16 rows by four of a quarter of the columns
constexpr int kThreads = 32 * kWarps;

/// What a value head brings that products of a tile read first; the next head's is on its way meanwhile.
struct HeadTiles {
  static constexpr int kBytes = (kTokens * kDim + 2 * kDim * kTokens) * 2 + kGateFloats * 4;
  Tile<kDim> dout;
  Tile<kTokens> errors, d_errors;  ///< [Dv, 64]
  float* gates;

  __device__ explicit HeadTiles(unsigned char* from) {
    dout.data = reinterpret_cast<BFloat16*>(from);
    errors.data = dout.data + kTokens * kDim;
    d_errors.data = errors.data + kDim * kTokens;
    gates = reinterpret_cast<float*>(d_errors.data + kDim * kTokens);
  }
};

/// A head's partial sums, a value a token or a warp.
struct Sums {
  float rows[4][kTokens];     ///< rowsum(X) and what the state's products add, by quarter of the columns
  float decayed[4][kTokens];  ///< r, likewise
  float states[kWarps];       ///< <dS1, S0>
};
using ColumnSums = float[4][kTokens];  ///< colsum(X), by 16 rows; X is taken without its diagonal, which its two sums share

/// `kBuffers`: 2, or 1 where shared memory is short and loads of the next head must wait for this one's products.
template <int kBuffers>
constexpr int kSharedBytes =
    2 * kTokens * kDim * 2 + kBuffers * HeadTiles::kBytes + 2 * kDim * kDim * 2 + 2 * kTokens * kTokens * 2 + static_cast<int>(sizeof(ColumnSums));

struct Operands {
  TokenRows dout, dq, dk, dv;
  float* d_log_decay;
  float* d_beta;
};

/// This warp's place: rows first_row + group + 8 i for i < 2, columns of keys 32 quarter + 8 block + 2 quad + e.
struct Place {
  int warp, group, quad, first_row, quarter;
  __device__ Place()
      : warp(static_cast<int>(threadIdx.x) / 32), group((static_cast<int>(threadIdx.x) % 32) / 4), quad(static_cast<int>(threadIdx.x) % 4),
        first_row(warp % 4 * 16), quarter(warp / 4) {}
  __device__ int row(int i) const { return first_row + group + 8 * i; }
};

/// d[i] = sums over this warp's columns of x o rows, for row(i); and total += factor_i x.
__device__ void add_scaled(float (&total)[4][4], float (&sums)[2], const float (&x)[4][4], const Tile<kDim>& rows, const Place& at, float factor_0,
                           float factor_1) {
  float dot[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < 4; ++block)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = *rows.pair(at.row(i), 32 * at.quarter + 8 * block + 2 * at.quad);
      const float factor = i == 0 ? factor_0 : factor_1;
      const float left = factor * x[block][2 * i], right = factor * x[block][2 * i + 1];
      total[block][2 * i] += left;
      total[block][2 * i + 1] += right;
      dot[i] += left * low_half(pair) + right * high_half(pair);
    }
#pragma unroll
  for (int i = 0; i < 2; ++i) sums[i] = row_sum(dot[i]);
}

/// Writes the warp's 16 x 32 of a tile's rows.
__device__ void store_gradient(const TokenRows& rows, const TileSpan& tile, int64_t head, const float (&x)[4][4], const Place& at) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) word[j] = pack(x[j][2 * i], x[j][2 * i + 1]);
    const uint4 piece = transpose_words(word[0], word[1], word[2], word[3]);
    if (at.row(i) < tile.count) *reinterpret_cast<uint4*>(head_rows(rows, tile.begin + at.row(i), head) + 32 * at.quarter + 8 * at.quad) = piece;
  }
}

/// dV = beta o dR: fragments of dR, 32 columns a warp.
__device__ void store_value_gradient(const TokenRows& dv, const TileSpan& tile, int64_t head, const Tile<kTokens>& d_errors, const float (&beta)[2],
                                     const Place& at) {
  const int first_value = 32 * at.quarter;
  uint32_t a[2][4];
  d_errors.load_a_transposed(a[0], at.first_row, first_value);
  d_errors.load_a_transposed(a[1], at.first_row, first_value + 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto scaled = [&](uint32_t pair) { return pack(beta[i] * low_half(pair), beta[i] * high_half(pair)); };
    const uint4 piece = transpose_words(scaled(a[0][i]), scaled(a[0][i + 2]), scaled(a[1][i]), scaled(a[1][i + 2]));
    if (at.row(i) < tile.count) *reinterpret_cast<uint4*>(head_rows(dv, tile.begin + at.row(i), head) + first_value + 8 * at.quad) = piece;
  }
}

/// d log_decay from the head's sums: suffix sums of dg, in which -r and dg_C's sum(r) leave the r of earlier tokens. Taken as those, and X without its
/// diagonal, nothing large cancels where decays are strong and the gradient tiny. One warp, two tokens a lane.
__device__ void store_decay_gradient(float* d_log_decay, const Pass& pass, const TileSpan& tile, int64_t head, const Sums& sums, const ColumnSums& columns,
                                     float last_factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float value[2] = {0, 0}, r[2] = {0, 0}, states = 0;
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      value[e] += sums.rows[part][2 * lane + e] - columns[part][2 * lane + e];
      r[e] += sums.decayed[part][2 * lane + e];
    }
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) states += sums.states[warp];
  float later = 0, earlier = 0;  // sums over other lanes' tokens
  float suffix = value[0] + value[1], prefix = r[0] + r[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float below = __shfl_down_sync(0xffffffffu, suffix, distance), above = __shfl_up_sync(0xffffffffu, prefix, distance);
    if (lane + distance < 32) suffix += below;
    if (lane >= distance) prefix += above;
  }
  later = __shfl_down_sync(0xffffffffu, suffix, 1), earlier = __shfl_up_sync(0xffffffffu, prefix, 1);
  if (lane == 31) later = 0;
  if (lane == 0) earlier = 0;
  const float result[2] = {value[0] + value[1] + later + earlier, value[1] + later + (earlier + r[0])};
#pragma unroll
  for (int e = 0; e < 2; ++e)
    if (2 * lane + e < tile.count) d_log_decay[(tile.begin + 2 * lane + e) * pass.in.shape.value_heads + head] = result[e] + last_factor * states;
}

/// Block: a tile and a key head, whose value heads are summed in their order.
template <int kBuffers>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(Pass pass, Operands to) {
  const Tile<kDim> q{reinterpret_cast<BFloat16*>(shared_bytes)}, k{q.data + kTokens * kDim};
  const Tile<kDim> state{k.data + kTokens * kDim}, d_state{state.data + kDim * kDim};  // transposed: [Dv, Dk]
  const Tile<kTokens> d_scores{d_state.data + kDim * kDim}, d_keys{d_scores.data + kTokens * kTokens};
  unsigned char* head_bytes = reinterpret_cast<unsigned char*>(d_keys.data + kTokens * kTokens);
  ColumnSums& columns = *reinterpret_cast<ColumnSums*>(head_bytes + kBuffers * HeadTiles::kBytes);
  Sums& sums = *reinterpret_cast<Sums*>(d_scores.data);  // written when their products are done

  const int64_t key_head = blockIdx.x, served = pass.in.shape.value_heads / pass.in.shape.key_heads, first_head = key_head * served;
  const int tile_index = pass.tile_begin + static_cast<int>(blockIdx.y);
  const TileSpan tile = pass.tiles[tile_index];
  const float scale = pass.in.shape.scale;
  const Place at;

  const auto fill_head = [&](int64_t head) {
    const HeadTiles tiles(head_bytes + (head - first_head) % kBuffers * HeadTiles::kBytes);
    const int64_t slot = slot_of(pass, tile_index, static_cast<int>(head));
    copy_tile<kTokens, kDim, kThreads>(tiles.dout, head_rows(to.dout, tile.begin, head), to.dout.stride, tile.count);
    copy_tile<kDim, kTokens, kThreads>(tiles.errors, pass.slots.errors + slot * kDim * kTokens, kTokens, kDim);
    copy_tile<kDim, kTokens, kThreads>(tiles.d_errors, pass.slots.d_errors + slot * kDim * kTokens, kTokens, kDim);
    copy_gates<kThreads>(tiles.gates, pass, slot);
  };
  const auto fill_states = [&](int64_t head) {
    const int64_t slot = slot_of(pass, tile_index, static_cast<int>(head));
    copy_tile<kDim, kDim, kThreads>(state, pass.slots.states + slot * kDim * kDim, kDim, kDim);
    copy_tile<kDim, kDim, kThreads>(d_state, pass.slots.d_states + slot * kDim * kDim, kDim, kDim);
  };
  copy_tile<kTokens, kDim, kThreads>(q, head_rows(pass.in.q, tile.begin, key_head), pass.in.q.stride, tile.count);
  copy_tile<kTokens, kDim, kThreads>(k, head_rows(pass.in.k, tile.begin, key_head), pass.in.k.stride, tile.count);
  fill_head(first_head);
  commit_copies();
  fill_states(first_head);
  commit_copies();

  float dq[4][4] = {}, dk[4][4] = {};
  float query_keys[2][4] = {}, key_keys[2][4] = {};  // Q K^T and K K^T: the warp's rows, columns 16 quarter..
  for (int64_t head = first_head; head < first_head + served; ++head) {
    if (kBuffers == 2) {
      if (head + 1 < first_head + served) fill_head(head + 1);
      commit_copies();
    }
    wait_copies<kBuffers>();
    __syncthreads();
    const HeadTiles tiles(head_bytes + (head - first_head) % kBuffers * HeadTiles::kBytes);
    if (head == first_head) {
#pragma unroll
      for (int step = 0; step < kDim; step += 16) {
        uint32_t a_queries[4], a_keys[4];
        q.load_a(a_queries, at.first_row, step);
        k.load_a(a_keys, at.first_row, step);
        uint32_t b[4];
        k.load_b_transposed(b, 16 * at.quarter, step);
        multiply_add_pair(query_keys[0], query_keys[1], a_queries, b);
        multiply_add_pair(key_keys[0], key_keys[1], a_keys, b);
      }
    }
    // dO E^T and dR E^T.
    float d_out_errors[2][4] = {}, d_errors_errors[2][4] = {};
#pragma unroll
    for (int step = 0; step < kDim; step += 16) {
      uint32_t a_out[4], a_errors[4];
      tiles.dout.load_a(a_out, at.first_row, step);
      tiles.d_errors.load_a_transposed(a_errors, at.first_row, step);
      uint32_t b[4];
      tiles.errors.load_b(b, 16 * at.quarter, step);
      multiply_add_pair(d_out_errors[0], d_out_errors[1], a_out, b);
      multiply_add_pair(d_errors_errors[0], d_errors_errors[1], a_errors, b);
    }
    const float* decay = tiles.gates + kGateDecay;
    const float* beta = tiles.gates + kGateBeta;
    float row_terms[2] = {0, 0};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float column_terms[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = at.row(i);
        float score[2], key[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 16 * at.quarter + 8 * block + 2 * at.quad + e;
          const float gamma = row >= column ? __expf(decay[row] - decay[column]) * beta[column] : 0.0f;
          score[e] = scale * gamma * d_out_errors[block][2 * i + e];
          key[e] = row > column ? -gamma * beta[row] * d_errors_errors[block][2 * i + e] : 0.0f;
          const float term = row > column ? score[e] * query_keys[block][2 * i + e] + key[e] * key_keys[block][2 * i + e] : 0.0f;
          row_terms[i] += term;
          column_terms[e] += term;
          if (row == column && row < tile.count)
            to.d_beta[(tile.begin + row) * pass.in.shape.value_heads + head] = d_errors_errors[block][2 * i + e];
        }
        const int column = 16 * at.quarter + 8 * block + 2 * at.quad;
        *d_scores.pair(row, column) = pack(score[0], score[1]);
        *d_keys.pair(row, column) = pack(key[0], key[1]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float sum = column_sum(column_terms[e]);
        if (at.group == 0) columns[at.warp % 4][16 * at.quarter + 8 * block + 2 * at.quad + e] = sum;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) row_terms[i] = row_sum(row_terms[i]);
    __syncthreads();

    // dQ += dP K;  dK += dP^T Q + (dB + dB^T) K: of each only the blocks that hold something.
#pragma unroll
    for (int step = 0; step < kTokens; step += 16) {
      if (step <= at.first_row) {
        uint32_t a_scores[4], a_keys[4];
        d_scores.load_a(a_scores, at.first_row, step);
        d_keys.load_a(a_keys, at.first_row, step);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t b[4];
          k.load_b(b, 32 * at.quarter + 16 * block, step);
          multiply_add_pair(dq[2 * block], dq[2 * block + 1], a_scores, b);
          multiply_add_pair(dk[2 * block], dk[2 * block + 1], a_keys, b);
        }
      }
      if (step >= at.first_row) {
        uint32_t a_scores[4], a_keys[4];
        d_scores.load_a_transposed(a_scores, at.first_row, step);
        d_keys.load_a_transposed(a_keys, at.first_row, step);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t b[4];
          q.load_b(b, 32 * at.quarter + 16 * block, step);
          multiply_add_pair(dk[2 * block], dk[2 * block + 1], a_scores, b);
          k.load_b(b, 32 * at.quarter + 16 * block, step);
          multiply_add_pair(dk[2 * block], dk[2 * block + 1], a_keys, b);
        }
      }
    }

    const float row_beta[2] = {beta[at.row(0)], beta[at.row(1)]};
    store_value_gradient(to.dv, tile, head, tiles.d_errors, row_beta, at);
    wait_copies<kBuffers - 1>();
    __syncthreads();
    {  // dO S0^T and dR S0^T
      float d_out_state[4][4] = {}, d_errors_state[4][4] = {};
#pragma unroll
      for (int step = 0; step < kDim; step += 16) {
        uint32_t a_out[4], a_errors[4];
        tiles.dout.load_a(a_out, at.first_row, step);
        tiles.d_errors.load_a_transposed(a_errors, at.first_row, step);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t b[4];
          state.load_b(b, 32 * at.quarter + 16 * block, step);
          multiply_add_pair(d_out_state[2 * block], d_out_state[2 * block + 1], a_out, b);
          multiply_add_pair(d_errors_state[2 * block], d_errors_state[2 * block + 1], a_errors, b);
        }
      }
      const float* from_start = tiles.gates + kGateFromStart;
      const float factor[2] = {from_start[at.row(0)], from_start[at.row(1)]};
      float dots[2];
      add_scaled(dq, dots, d_out_state, q, at, scale * factor[0], scale * factor[1]);
      row_terms[0] += dots[0], row_terms[1] += dots[1];
      add_scaled(dk, dots, d_errors_state, k, at, -factor[0] * row_beta[0], -factor[1] * row_beta[1]);
      row_terms[0] += dots[0], row_terms[1] += dots[1];
    }
    {  // E dS1^T
      float errors_d_state[4][4] = {};
#pragma unroll
      for (int step = 0; step < kDim; step += 16) {
        uint32_t a[4];
        tiles.errors.load_a_transposed(a, at.first_row, step);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t b[4];
          d_state.load_b(b, 32 * at.quarter + 16 * block, step);
          multiply_add_pair(errors_d_state[2 * block], errors_d_state[2 * block + 1], a, b);
        }
      }
      const float* to_end = tiles.gates + kGateToEnd;
      float dots[2];
      add_scaled(dk, dots, errors_d_state, k, at, to_end[at.row(0)] * row_beta[0], to_end[at.row(1)] * row_beta[1]);
      if (at.quad == 0)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sums.rows[at.quarter][at.row(i)] = row_terms[i];
          sums.decayed[at.quarter][at.row(i)] = dots[i];
        }
    }
    float product = 0;
#pragma unroll
    for (int i = 0; i < kDim * kDim / 8 / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads;  // both tiles turn their pieces alike
      float left[8], right[8];
      load(state.data + 8 * item, left);
      load(d_state.data + 8 * item, right);
#pragma unroll
      for (int c = 0; c < 8; ++c) product += left[c] * right[c];
    }
    product = warp_sum(product);
    if (static_cast<int>(threadIdx.x) % 32 == 0) sums.states[at.warp] = product;
    __syncthreads();
    const bool more = head + 1 < first_head + served;
    if (at.warp == 0) store_decay_gradient(to.d_log_decay, pass, tile, head, sums, columns, tiles.gates[kGateFromStart + kTokens - 1]);
    if (kBuffers == 1) {
      __syncthreads();
      if (more) fill_head(head + 1);
      commit_copies();
    }
    if (more) fill_states(head + 1);
    commit_copies();
    __syncthreads();  // sums are the next head's, and these head tiles those of the one after
  }
  store_gradient(to.dq, tile, key_head, dq, at);
  store_gradient(to.dk, tile, key_head, dk, at);
}

}  // namespace

void write_gradients(const Pass& pass, const DeltaRuleBackwardLaunch& launch, Stream stream) {
  const dim3 grid(static_cast<unsigned int>(pass.in.shape.key_heads), static_cast<unsigned int>(pass.tile_end - pass.tile_begin));
  const Operands to{{const_cast<void*>(launch.dout), pass.in.shape.value_heads * kDim}, launch.dq, launch.dk, launch.dv, launch.d_log_decay, launch.d_beta};
  if (shared_bytes_limit() >= kSharedBytes<2>)
    start(gradient_kernel<2>, "delta_rule_gradient", grid, kThreads, kSharedBytes<2>, stream, pass, to);
  else
    start(gradient_kernel<1>, "delta_rule_gradient", grid, kThreads, kSharedBytes<1>, stream, pass, to);
}

}  // namespace oom::ops::delta_rule
