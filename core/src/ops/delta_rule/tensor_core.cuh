/// Tensor-core instructions of sm_80 and later as functions: asynchronous copies into shared memory, 8x8 matrix loads, BF16 products into FP32.
///
/// Fragments of one warp, with group = lane / 4 and pair = 2 (lane % 4):
///   D, 16 x 8 FP32:  d[0], d[1] = row group, columns pair, pair + 1;  d[2], d[3] = row group + 8.
///   A, 16 x 16 BF16: a[0], a[2] = row group, columns pair.. and pair + 8..;  a[1], a[3] = row group + 8. So two neighbouring D make an A.
///   B, 16 x 8 BF16:  b0, b1 = column group, rows pair.. and pair + 8...
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace oom::ops {

__device__ inline uint32_t shared_address(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

/// Copies 16 bytes, or writes 16 zero bytes where `valid` is false (`global` must still be readable memory's address).
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// A barrier of some warps, `threads` in all, that use `id` (1 to 15) for nothing else at the time.
__device__ inline void meet(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// Waits for this thread's copies, all but those of the last `kPending` commits. Others' copies are there after the next block barrier.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Loads four 8x8 matrices of BF16: lanes 8 i to 8 i + 7 name the 16-byte rows of matrix i. A lane receives row group, columns pair and pair + 1.
__device__ inline void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
/// The same with each matrix transposed.
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

/// D += A B.
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace oom::ops
