/// Arguments of the permutation kernels, and their CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct PermutationBuild {
  const int32_t* indices = nullptr;
  int64_t choices = 0, top_k = 1, experts = 0;
  int32_t* counts = nullptr;
  int32_t* ends = nullptr;
  int32_t* token_of = nullptr;
  int32_t* row_of = nullptr;
  int32_t* tile_counts = nullptr;  ///< CUDA: [experts, tiles]
  int64_t tiles = 0;
};

/// Choices that one CUDA block sorts; their number of tiles stays below about a thousand.
inline int64_t permutation_tile(int64_t choices) {
  const int64_t even = (choices + 1023) / 1024;
  return even < 2048 ? 2048 : (even + 255) / 256 * 256;
}

struct RowCopy {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride_bytes = 0, out_stride_bytes = 0, row_bytes = 0, count = 0;
  const int32_t* source = nullptr;
  const int32_t* target = nullptr;
};

struct Combine {
  Rows rows, residual, shared, y;
  Array shared_scale;
  const int32_t* row_of = nullptr;
  const float* weights = nullptr;
  int64_t top_k = 0;
};

struct ChoiceMove {
  const float* from = nullptr;
  float* to = nullptr;
  const int32_t* row_of = nullptr;
  int64_t choices = 0;
  bool to_rows = true;
};

void make_permutation_cuda(const PermutationBuild& arguments, Stream stream);
void copy_rows_cuda(const RowCopy& arguments, Stream stream);
void combine_cuda(const Combine& arguments, Stream stream);
void move_choices_cuda(const ChoiceMove& arguments, Stream stream);

}  // namespace oom::ops
