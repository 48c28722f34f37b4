#include "ops/grouped_tail.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace oom::ops {
namespace {

__global__ void zero_tail_rows_kernel(uint32_t* matrix, int64_t rows, int64_t row_words, const int32_t* end) {
  for (int64_t row = *end + static_cast<int64_t>(blockIdx.x); row < rows; row += gridDim.x)
    for (int64_t word = threadIdx.x; word < row_words; word += blockDim.x) matrix[row * row_words + word] = 0;
}

}  // namespace

void zero_tail_rows(void* matrix, int64_t rows, int64_t row_bytes, const int32_t* end, CUstream_st* stream) {
  if (rows == 0 || row_bytes == 0) return;
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(rows, 264));
  zero_tail_rows_kernel<<<blocks, 256, 0, stream>>>(static_cast<uint32_t*>(matrix), rows, row_bytes / 4, end);
}

}  // namespace oom::ops
