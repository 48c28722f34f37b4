/// Zeroes the rows that a grouped product leaves unwritten.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace oom::ops {

/// Writes zeros into rows [*end, rows) of a row-major matrix. `end` is device memory; reads nothing else, so a full matrix costs one empty
/// launch. `row_bytes` is a multiple of 4. Runs on `stream`.
void zero_tail_rows(void* matrix, int64_t rows, int64_t row_bytes, const int32_t* end, CUstream_st* stream);

}  // namespace oom::ops
