/// What every kernel here shares: its launch, its shared memory, the places of operands.
#pragma once

#include "ops/delta_rule/fragments.cuh"
#include "ops/delta_rule/kernels.h"
#include "ops/delta_rule/start.cuh"

namespace oom::ops::delta_rule {

extern __shared__ __align__(128) unsigned char shared_bytes[];

enum Gate : int { kGateDecay = 0, kGateFromStart = kTokens, kGateToEnd = 2 * kTokens, kGateBeta = 3 * kTokens, kGateFloats = 4 * kTokens };

__device__ inline int64_t slot_of(const Pass& pass, int tile, int head) {
  return static_cast<int64_t>(tile - pass.tile_begin) * pass.in.shape.value_heads + head;
}
/// First element of a head's row `token`.
__device__ inline BFloat16* head_rows(const TokenRows& rows, int token, int64_t head) {
  return static_cast<BFloat16*>(rows.data) + token * rows.stride + head * kDim;
}

/// Starts the copy of a slot's gates.
template <int kThreads>
__device__ void copy_gates(float* to, const Pass& pass, int64_t slot) {
  for (int i = static_cast<int>(threadIdx.x); i < kGateFloats / 4; i += kThreads) copy_async_16(to + 4 * i, pass.slots.gates + slot * kGateFloats + 4 * i, true);
}

}  // namespace oom::ops::delta_rule
