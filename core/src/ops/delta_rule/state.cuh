/// A state as the walks over tiles hold it: transposed, FP32, in registers. Two warps, a pair, share 16 columns of values; each holds half of the keys
/// and computes half of a tile's tokens. Pairs never meet: columns of values do not depend on each other.
#pragma once

#include "ops/delta_rule/block.cuh"

namespace oom::ops::delta_rule {

constexpr int kPairValues = 16;
constexpr int kPairThreads = 64;
constexpr int kHalfTokens = kTokens / 2;
constexpr int kHalfKeys = kDim / 2;

/// A's of 16 values and 32 tokens: what one warp hands the other.
using HalfA = uint32_t[2][4];

/// What a pair hands over, in shared memory. Between two uses of one part lie meetings for the others.
struct Exchange {
  float4 sums[2][4][32];    ///< by receiver
  uint4 first[2][32];       ///< from one half to the other
  uint4 second[2][2][32];   ///< by sender
};

/// A warp's place.
struct PairPlace {
  int pair, half, lane, quad, group;
  __device__ PairPlace() {
    lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, group = lane / 4;
    half = static_cast<int>(threadIdx.x) / 32 % 2, pair = static_cast<int>(threadIdx.x) / kPairThreads;
  }
  __device__ void meet() const { ops::meet(1 + pair, kPairThreads); }
  __device__ int own_tokens() const { return half * kHalfTokens; }
  __device__ int other_tokens() const { return kHalfTokens - own_tokens(); }
  __device__ int keys() const { return half * kHalfKeys; }
};

/// This warp's keys of its pair's state.
struct HalfState {
  float d[kHalfKeys / 8][4];

  /// `state` is a head's [Dk, Dv], or null for zero; `first_value` the pair's first column.
  __device__ void load(const float* state, int first_value, const PairPlace& at) {
    for_each(first_value, at, [&](float& x, int64_t i) { x = state != nullptr ? state[i] : 0.0f; });
  }
  __device__ void save(float* state, int first_value, const PairPlace& at) {
    if (state != nullptr) for_each(first_value, at, [&](float& x, int64_t i) { state[i] = x; });
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (auto& fragment : d)
#pragma unroll
      for (float& x : fragment) x *= factor;
  }

 private:
  template <typename Body>
  __device__ void for_each(int first_value, const PairPlace& at, Body&& body) {
#pragma unroll
    for (int block = 0; block < kHalfKeys / 8; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        body(d[block][i], static_cast<int64_t>(at.keys() + 8 * block + 2 * at.quad + i % 2) * kDim + first_value + at.group + 8 * (i / 2));
  }
};

/// x = S^T X^T for X [64 tokens, Dk]: [16 values x this warp's 32 tokens]. The pair meets. With kStore S^T is written, rounded, to rows of `rounded_state`
/// [values, Dk].
template <bool kStore>
__device__ void state_times_rows(float (&x)[4][4], const HalfState& state, const Tile<kDim>& rows, Exchange& exchange, const PairPlace& at,
                                 BFloat16* rounded_state) {
  float others[4][4] = {};  // this warp's keys, the other's tokens
#pragma unroll
  for (auto& fragment : x)
#pragma unroll
    for (float& value : fragment) value = 0;
#pragma unroll
  for (int step = 0; step < kHalfKeys / 16; step += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to_a(a[i], state.d[2 * (step + i)], state.d[2 * (step + i) + 1]);
      const int key = at.keys() + 16 * (step + i);
      uint32_t b[4][4];
#pragma unroll
      for (int block = 0; block < 4; ++block) rows.load_b_transposed(b[block], (block < 2 ? at.own_tokens() : at.other_tokens()) + block % 2 * 16, key);
      multiply_add_pair(x[0], x[1], a[i], b[0]);
      multiply_add_pair(x[2], x[3], a[i], b[1]);
      multiply_add_pair(others[0], others[1], a[i], b[2]);
      multiply_add_pair(others[2], others[3], a[i], b[3]);
    }
    if constexpr (kStore) {
      BFloat16* to = rounded_state + at.group * kDim + at.keys() + 16 * step + 8 * at.quad;
      *reinterpret_cast<uint4*>(to) = transpose_words(a[0][0], a[0][2], a[1][0], a[1][2]);
      *reinterpret_cast<uint4*>(to + 8 * kDim) = transpose_words(a[0][1], a[0][3], a[1][1], a[1][3]);
    }
  }
#pragma unroll
  for (int block = 0; block < 4; ++block)
    exchange.sums[1 - at.half][block][at.lane] = make_float4(others[block][0], others[block][1], others[block][2], others[block][3]);
  at.meet();
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const float4 sum = exchange.sums[at.half][block][at.lane];
    x[block][0] += sum.x, x[block][1] += sum.y, x[block][2] += sum.z, x[block][3] += sum.w;
  }
}

/// S^T += A X for this warp's keys: A [16 values x 64 tokens] in halves, X [64 tokens, Dk].
__device__ inline void add_to_state(HalfState& state, const HalfA& own, const HalfA& other, const Tile<kDim>& rows, const PairPlace& at) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int token = (step < 2 ? at.own_tokens() : at.other_tokens()) + step % 2 * 16;
    uint32_t b[4][4];
#pragma unroll
    for (int block = 0; block < 4; ++block) rows.load_b(b[block], at.keys() + 16 * block, token);
#pragma unroll
    for (int block = 0; block < 4; ++block)
      multiply_add_pair(state.d[2 * block], state.d[2 * block + 1], step < 2 ? own[step] : other[step - 2], b[block]);
  }
}

/// Hands an A to the other warp and takes its; the pair meets.
__device__ inline void swap_halves(HalfA& other, const HalfA& own, Exchange& exchange, const PairPlace& at) {
#pragma unroll
  for (int step = 0; step < 2; ++step) exchange.second[at.half][step][at.lane] = make_uint4(own[step][0], own[step][1], own[step][2], own[step][3]);
  at.meet();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint4 word = exchange.second[1 - at.half][step][at.lane];
    other[step][0] = word.x, other[step][1] = word.y, other[step][2] = word.z, other[step][3] = word.w;
  }
}
/// Hands an A from one half to the other; the pair meets. The receiver's `taken` is what was handed.
__device__ inline void hand_over(HalfA& taken, const HalfA& own, int from, Exchange& exchange, const PairPlace& at) {
  if (at.half == from)
#pragma unroll
    for (int step = 0; step < 2; ++step) exchange.first[step][at.lane] = make_uint4(own[step][0], own[step][1], own[step][2], own[step][3]);
  at.meet();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint4 word = exchange.first[step][at.lane];
    taken[step][0] = word.x, taken[step][1] = word.y, taken[step][2] = word.z, taken[step][3] = word.w;
  }
}

/// Rounds [16 values x 32 tokens], each token times its factor, to A. `factor(block)` has the two of this lane's tokens among the eight.
template <typename Factor>
__device__ void scaled_to_a(HalfA& a, const float (&x)[4][4], Factor&& factor) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    float d[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 f = factor(2 * step + half);
#pragma unroll
      for (int i = 0; i < 4; ++i) d[half][i] = x[2 * step + half][i] * (i % 2 ? f.y : f.x);
    }
    to_a(a[step], d[0], d[1]);
  }
}

/// Writes A [16 values x this warp's 32 tokens] to rows of 64 tokens.
__device__ inline void store_rows(BFloat16* to, const HalfA& a, const PairPlace& at) {
  BFloat16* row = to + at.group * kTokens + at.own_tokens() + 8 * at.quad;
  *reinterpret_cast<uint4*>(row) = transpose_words(a[0][0], a[0][2], a[1][0], a[1][2]);
  *reinterpret_cast<uint4*>(row + 8 * kTokens) = transpose_words(a[0][1], a[0][3], a[1][1], a[1][3]);
}

/// This lane's gates of its warp's tokens: [block] has two tokens.
struct OwnGates {
  float2 from_start[4], to_end[4], beta[4];
  __device__ OwnGates(const float* gates, const PairPlace& at) {
    const float* own = gates + at.own_tokens() + 2 * at.quad;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      from_start[block] = *reinterpret_cast<const float2*>(own + kGateFromStart + 8 * block);
      to_end[block] = *reinterpret_cast<const float2*>(own + kGateToEnd + 8 * block);
      beta[block] = *reinterpret_cast<const float2*>(own + kGateBeta + 8 * block);
    }
  }
};

/// The part of a segment that lies in a pass, and whether it goes on beyond the pass's edges.
struct Walk {
  SegmentSpan segment;
  int first, last;  ///< tiles; last is not among them
  __device__ Walk(const Pass& pass, int index) : segment(pass.segments[pass.segment_begin + index]) {
    first = max(segment.first_tile, pass.tile_begin);
    last = min(segment.first_tile + segment.tiles, pass.tile_end);
  }
  __device__ bool from_before() const { return first > segment.first_tile; }
  __device__ bool goes_on() const { return last < segment.first_tile + segment.tiles; }
  __device__ int token(int tile) const { return segment.begin + (tile - segment.first_tile) * kTokens; }
  __device__ int count(int tile) const { return min(kTokens, segment.end - token(tile)); }
  /// Which sequence's outer state the segment begins from, or ends in; -1: none.
  __device__ int64_t begins_sequence(const DeltaRuleShape& shape) const {
    const int64_t length = shape.tokens / shape.sequences;
    return segment.begin % length == 0 ? segment.begin / length : -1;
  }
  __device__ int64_t ends_sequence(const DeltaRuleShape& shape) const {
    const int64_t length = shape.tokens / shape.sequences;
    return segment.end % length == 0 ? segment.end / length - 1 : -1;
  }
};

/// A head's part of states [.., value heads, Dk, Dv], or null.
template <typename Float>
__device__ Float* head_state(Float* states, int64_t sequence, int64_t head, const DeltaRuleShape& shape) {
  return states == nullptr || sequence < 0 ? nullptr : states + (sequence * shape.value_heads + head) * kDim * kDim;
}

}  // namespace oom::ops::delta_rule
