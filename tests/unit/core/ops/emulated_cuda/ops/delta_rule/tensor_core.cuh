/// The tensor-core instructions of core/src/ops/delta_rule/tensor_core.cuh, which says what fragments hold, on the emulated device.
#pragma once

#include "emulated_cuda.h"

namespace oom::ops {

inline void copy_async_16(void* shared, const void* global, bool valid) { emulated_cuda::start_copy(shared, global, valid); }
inline void commit_copies() { emulated_cuda::commit_copies(); }
template <int kPending>
void wait_copies() {
  emulated_cuda::wait_copies(kPending);
}
inline void meet(int id, int threads) { emulated_cuda::barrier(id, threads); }

/// Lane l receives of matrix m the elements (row, column) and (row, column + 1), row l / 4 and column 2 (l % 4), of it or of its transpose.
inline void load_four_matrices(uint32_t (&r)[4], const void* row, bool transposed) {
  struct Lane {
    uint32_t* r;
    const void* row;
  } lane{r, row};
  emulated_cuda::warp_meeting(lane, [&](Lane* const* lanes) {
    const auto element = [&](int matrix, int i, int j) -> uint32_t {
      return static_cast<const uint16_t*>(lanes[8 * matrix + (transposed ? j : i)]->row)[transposed ? i : j];
    };
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int l = 0; l < 32; ++l) {
        const int i = l / 4, j = 2 * (l % 4);
        lanes[l]->r[matrix] = element(matrix, i, j) | element(matrix, i, j + 1) << 16;
      }
  });
}
inline void load_matrices(uint32_t (&r)[4], const void* row) { load_four_matrices(r, row, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) { load_four_matrices(r, row, true); }

inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Lane {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
  } lane{d, a, {b0, b1}};
  emulated_cuda::warp_meeting(lane, [](Lane* const* lanes) {
    const auto value = [](uint32_t pair, int half) { return __uint_as_float(half == 0 ? pair << 16 : pair & 0xffff0000u); };
    float a[16][16], b[16][8];
    for (int l = 0; l < 32; ++l)
      for (int half = 0; half < 2; ++half) {
        const int group = l / 4, pair = 2 * (l % 4) + half;
        for (int i = 0; i < 4; ++i) a[group + i % 2 * 8][pair + i / 2 * 8] = value(lanes[l]->a[i], half);
        for (int i = 0; i < 2; ++i) b[pair + 8 * i][group] = value(lanes[l]->b[i], half);
      }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += a[l / 4 + i / 2 * 8][k] * b[k][2 * (l % 4) + i % 2];
        lanes[l]->d[i] += sum;
      }
  });
}

}  // namespace oom::ops
