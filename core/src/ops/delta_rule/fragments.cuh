/// Tiles of BF16 in shared memory and fragments of them in registers. Fragment layouts: tensor_core.cuh.
#pragma once

#include <cstring>

#include "ops/delta_rule/tensor_core.cuh"
#include "ops/element.h"

namespace oom::ops {

using BFloat16 = __nv_bfloat16;

/// Rounds two values; the first lies in the low half, where the smaller column is.
__device__ inline uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// A tile of `kColumns` BF16 a row, in pieces of 16 bytes whose place is turned with the row, so that the eight rows of a matrix load lie in different
/// banks whether they are read along or across.
template <int kColumns>
struct Tile {
  static_assert(kColumns == 32 || kColumns % 64 == 0);
  BFloat16* data;

  __device__ BFloat16* piece(int row, int piece) const {
    const int turn = kColumns == 32 ? (row >> 1) & 3 : row & 7;
    return data + row * kColumns + ((piece ^ turn) << 3);
  }
  /// Two neighbouring columns; `column` is even.
  __device__ uint32_t* pair(int row, int column) const { return reinterpret_cast<uint32_t*>(piece(row, column >> 3) + (column & 7)); }

  /// A [16 x 16] from rows m.., columns k...
  __device__ void load_a(uint32_t (&a)[4], int m, int k) const {
    const int lane = threadIdx.x % 32;
    load_matrices(a, piece(m + (lane & 15), (k >> 3) + (lane >> 4)));
  }
  /// A [16 x 16] of the transposed tile: A's row is the tile's column m.., A's column the tile's row k...
  __device__ void load_a_transposed(uint32_t (&a)[4], int m, int k) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(a, piece(k + (lane & 7) + ((lane >> 4) << 3), (m >> 3) + ((lane >> 3) & 1)));
  }
  /// Two B [16 x 8], for columns n.. and n + 8.., of the transposed tile: B's column is the tile's row.
  __device__ void load_b_transposed(uint32_t (&b)[4], int n, int k) const {
    const int lane = threadIdx.x % 32;
    load_matrices(b, piece(n + (lane & 7) + ((lane >> 4) << 3), (k >> 3) + ((lane >> 3) & 1)));
  }
  /// Two B [16 x 8], for columns n.. and n + 8..: B's row is the tile's row.
  __device__ void load_b(uint32_t (&b)[4], int n, int k) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(b, piece(k + (lane & 15), (n >> 3) + (lane >> 4)));
  }
};

/// Starts the copy of `kRows` rows, zeros from row `valid_rows` on. `global` is the first row's first element, `stride` the elements between rows.
template <int kRows, int kColumns, int kThreads>
__device__ void copy_tile(Tile<kColumns> to, const BFloat16* global, int64_t stride, int valid_rows) {
  constexpr int kPieces = kColumns / 8;
  static_assert(kRows * kPieces % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
    const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = item / kPieces, piece = item % kPieces;
    const bool valid = row < valid_rows;
    copy_async_16(to.piece(row, piece), global + (valid ? row * stride + piece * 8 : 0), valid);
  }
}

/// D += A (B of two neighbouring column blocks).
__device__ inline void multiply_add_pair(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  multiply_add(left, a, b[0], b[1]);
  multiply_add(right, a, b[2], b[3]);
}

/// Rounds two neighbouring D to an A.
__device__ inline void to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]), a[1] = pack(left[2], left[3]), a[2] = pack(right[0], right[1]), a[3] = pack(right[2], right[3]);
}

/// Transposes the 4 x 4 words that four neighbouring lanes hold: lane i ends with word i of each, in the order of lanes. So a row's 32 columns, which
/// fragments spread as pairs, become 16 bytes of eight neighbouring columns a lane.
__device__ inline uint4 transpose_words(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1), y = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
  (odd ? w0 : w1) = x;
  (odd ? w2 : w3) = y;
  const uint32_t z = __shfl_xor_sync(0xffffffffu, upper ? w0 : w2, 2), u = __shfl_xor_sync(0xffffffffu, upper ? w1 : w3, 2);
  (upper ? w0 : w2) = z;
  (upper ? w1 : w3) = u;
  return make_uint4(w0, w1, w2, w3);
}

/// Sums over the four lanes that share a row of D.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
/// Sums over the eight lanes that share a column of D.
__device__ inline float column_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 4);
  value += __shfl_xor_sync(0xffffffffu, value, 8);
  return value + __shfl_xor_sync(0xffffffffu, value, 16);
}

}  // namespace oom::ops
