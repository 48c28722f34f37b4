/// Grouped products by tensor cores on any GPU from sm_80 on: for where LibTorch has no grouped kernel. Raw pointers, one stream, no host
/// synchronisation: each block finds its expert from the offsets. All matrices are row-major BF16; products accumulate in FP32.
#pragma once

#include <cstdint>

#include "ops/element.h"

struct CUstream_st;

namespace oom::ops {

/// Rows sorted by expert: int32 [experts] ends on the device; rows at and past the last end are neither read nor written.
struct ExpertRows {
  const int32_t* ends = nullptr;
  int experts = 0;
  int64_t rows = 0;  ///< at least ends[experts - 1]
};

/// Columns must be multiples of this many elements, and matrices begin at 16 bytes.
inline constexpr int kGroupedTileAlignment = 8;

/// out [rows, outputs] = in [rows, inputs] times each expert's matrix: weights [experts, outputs, inputs], or [experts, inputs, outputs] when
/// `weights_by_input`. Throws DeviceError when the launch is refused.
void grouped_rows_product(const void* in, const void* weights, void* out, const ExpertRows& rows, int outputs, int inputs, bool weights_by_input, CUstream_st* stream);
/// sink [experts, outputs, inputs] = (or +=) the sum over an expert's rows of dy [rows, outputs] (outer) x [rows, inputs]; zero for an expert without
/// rows. The sum joins what an accumulating sink holds in FP32 and is rounded once.
void grouped_weights_product(const void* dy, const void* x, const Sink& sink, const ExpertRows& rows, int outputs, int inputs, CUstream_st* stream);

}  // namespace oom::ops
