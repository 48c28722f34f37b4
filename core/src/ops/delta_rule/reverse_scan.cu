/// The walk from state gradient to state gradient, from a segment's last tile to its first.
#include "ops/delta_rule/state.cuh"

namespace oom::ops::delta_rule {
namespace {

template <int kPairs>
struct Stage {
  static constexpr int kValues = kPairs * kPairValues;
  static constexpr int kBytes = (2 * kTokens * kDim + 2 * kTokens * kTokens + kTokens * kValues) * 2 + kGateFloats * 4;
  Tile<kDim> q, k;
  Tile<kTokens> coupling, scores;
  Tile<kValues> dout;
  float* gates;

  __device__ explicit Stage(int index) {
    q.data = reinterpret_cast<BFloat16*>(shared_bytes + index * kBytes);
    k.data = q.data + kTokens * kDim;
    coupling.data = k.data + kTokens * kDim;
    scores.data = coupling.data + kTokens * kTokens;
    dout.data = scores.data + kTokens * kTokens;
    gates = reinterpret_cast<float*>(dout.data + kTokens * kValues);
  }
  __device__ void fill(const Pass& pass, const TokenRows& d_out, const Walk& walk, int tile, int64_t head, int64_t key_head, int first_value) {
    constexpr int kThreads = kPairThreads * kPairs;
    const int64_t slot = slot_of(pass, tile, static_cast<int>(head));
    const int token = walk.token(tile), count = walk.count(tile);
    copy_tile<kTokens, kDim, kThreads>(k, head_rows(pass.in.k, token, key_head), pass.in.k.stride, count);
    copy_tile<kTokens, kValues, kThreads>(dout, head_rows(d_out, token, head) + first_value, d_out.stride, count);
    copy_tile<kTokens, kTokens, kThreads>(scores, pass.slots.scores + slot * kTokens * kTokens, kTokens, kTokens);
    copy_tile<kTokens, kTokens, kThreads>(coupling, pass.slots.coupling + slot * kTokens * kTokens, kTokens, kTokens);
    copy_tile<kTokens, kDim, kThreads>(q, head_rows(pass.in.q, token, key_head), pass.in.q.stride, count);
    copy_gates<kThreads>(gates, pass, slot);
  }
};

/// x += A M for the A of tokens first.. to first + 31 and the columns of M that are this warp's tokens, M [64 tokens x 64 tokens] with nothing right of
/// its diagonal. kTriangle: the tokens are the warp's own.
template <bool kTriangle>
__device__ void add_times_lower(float (&x)[4][4], const HalfA& a, const Tile<kTokens>& m, int first, const PairPlace& at) {
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int block = 0; block < (kTriangle ? step + 1 : 2); ++block) {
      uint32_t b[4];
      m.load_b(b, at.own_tokens() + 16 * block, first + 16 * step);
      multiply_add_pair(x[2 * block], x[2 * block + 1], a[step], b);
    }
}

/// A [16 values x 32 tokens from `first` on] of scale e^g o dO.
__device__ void decayed_to_a(HalfA& a, const HalfA& dout, const float* gates, int first, float scale, const PairPlace& at) {
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 from_start = *reinterpret_cast<const float2*>(gates + kGateFromStart + first + 16 * step + 8 * half + 2 * at.quad);
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i)
        a[step][i] = pack(scale * from_start.x * low_half(dout[step][i]), scale * from_start.y * high_half(dout[step][i]));
    }
}

/// Block: a segment, a value head, 16 columns of values a pair of warps.
template <int kPairs, int kStages>
__global__ void __launch_bounds__(kPairThreads* kPairs) reverse_scan_kernel(Pass pass, TokenRows d_out, Carry carry, const float* d_final_state,
                                                                            float* d_initial_state) {
  using Buffer = Stage<kPairs>;
  const Walk walk(pass, static_cast<int>(blockIdx.x));
  if (walk.first >= walk.last) return;
  const DeltaRuleShape& shape = pass.in.shape;
  const int64_t head = blockIdx.y, key_head = head / (shape.value_heads / shape.key_heads);
  const PairPlace at;
  Exchange& exchange = reinterpret_cast<Exchange*>(shared_bytes + kStages * Buffer::kBytes)[at.pair];
  const int block_value = static_cast<int>(blockIdx.z) * Buffer::kValues, first_value = block_value + at.pair * kPairValues;

  HalfState d_state;
  d_state.load(walk.goes_on() ? head_state(carry.in, 0, head, shape) : head_state(d_final_state, walk.ends_sequence(shape), head, shape), first_value, at);
#pragma unroll
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    if (walk.last - 1 - ahead >= walk.first) Buffer(ahead).fill(pass, d_out, walk, walk.last - 1 - ahead, head, key_head, block_value);
    commit_copies();
  }
  int stage = 0;
  for (int tile = walk.last - 1; tile >= walk.first; --tile) {
    wait_copies<kStages - 2>();
    __syncthreads();
    const Buffer buffer(stage);
    if (tile - (kStages - 1) >= walk.first)
      Buffer((stage + kStages - 1) % kStages).fill(pass, d_out, walk, tile - (kStages - 1), head, key_head, block_value);
    commit_copies();
    stage = (stage + 1) % kStages;

    const int64_t slot = slot_of(pass, tile, static_cast<int>(head));
    const OwnGates gates(buffer.gates, at);
    HalfA own_dout, other_dout;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      buffer.dout.load_a_transposed(own_dout[step], at.pair * kPairValues, at.own_tokens() + 16 * step);
      buffer.dout.load_a_transposed(other_dout[step], at.pair * kPairValues, at.other_tokens() + 16 * step);
    }
    float x[4][4];  // K dS1, the gradient of the deltas, dR in turn, transposed: this warp's tokens
    state_times_rows<true>(x, d_state, buffer.k, exchange, at, pass.slots.d_states + (slot * kDim + first_value) * kDim);
#pragma unroll
    for (int block = 0; block < 4; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[block][i] *= i % 2 ? gates.to_end[block].y : gates.to_end[block].x;
    add_times_lower<true>(x, own_dout, buffer.scores, at.own_tokens(), at);
    if (at.half == 0) add_times_lower<false>(x, other_dout, buffer.scores, kHalfTokens, at);
    // dR = dVn - G^T (beta o dVn): the triangle of the warp's own tokens, then for the earlier half what the later one adds.
    HalfA own, other;
    scaled_to_a(own, x, [&](int block) { return make_float2(-gates.beta[block].x, -gates.beta[block].y); });
    hand_over(other, own, 1, exchange, at);
    add_times_lower<true>(x, own, buffer.coupling, at.own_tokens(), at);
    if (at.half == 0) add_times_lower<false>(x, other, buffer.coupling, kHalfTokens, at);

    scaled_to_a(own, x, [&](int block) {
      return make_float2(-gates.beta[block].x * gates.from_start[block].x, -gates.beta[block].y * gates.from_start[block].y);
    });
    swap_halves(other, own, exchange, at);
    d_state.scale(buffer.gates[kGateFromStart + kTokens - 1]);
    add_to_state(d_state, own, other, buffer.k, at);
    decayed_to_a(own, own_dout, buffer.gates, at.own_tokens(), shape.scale, at);
    decayed_to_a(other, other_dout, buffer.gates, at.other_tokens(), shape.scale, at);
    add_to_state(d_state, own, other, buffer.q, at);
    scaled_to_a(own, x, [&](int) { return make_float2(1.0f, 1.0f); });
    store_rows(pass.slots.d_errors + (slot * kDim + first_value) * kTokens, own, at);
  }
  d_state.save(walk.from_before() ? head_state(carry.out, 0, head, shape) : head_state(d_initial_state, walk.begins_sequence(shape), head, shape),
               first_value, at);
}

}  // namespace

void reverse_scan(const Pass& pass, const DeltaRuleBackwardLaunch& launch, const Carry& carry, Stream stream) {
  constexpr int kPairs = 2;
  const dim3 grid(static_cast<unsigned int>(pass.segment_count), static_cast<unsigned int>(pass.in.shape.value_heads), kDim / kPairValues / kPairs);
  const TokenRows d_out{const_cast<void*>(launch.dout), pass.in.shape.value_heads * kDim};
  const auto bytes = [](int stages) { return stages * Stage<kPairs>::kBytes + kPairs * static_cast<int>(sizeof(Exchange)); };
  const auto start_with = [&](auto stages) {
    start(reverse_scan_kernel<kPairs, stages()>, "delta_rule_reverse_scan", grid, kPairThreads * kPairs, bytes(stages()), stream, pass, d_out,
          carry, launch.d_final_state, launch.d_initial_state);
  };
  if (shared_bytes_limit() >= bytes(3))
    start_with(std::integral_constant<int, 3>{});
  else
    start_with(std::integral_constant<int, 2>{});
}

}  // namespace oom::ops::delta_rule
