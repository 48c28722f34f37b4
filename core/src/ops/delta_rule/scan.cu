/// The walk from state to state, forward: the only sequential part, so it holds nothing that could be done elsewhere.
#include "ops/delta_rule/state.cuh"

namespace oom::ops::delta_rule {
namespace {

constexpr int kStages = 3;

template <int kPairs>
struct Stage {
  static constexpr int kValues = kPairs * kPairValues;
  static constexpr int kBytes = (kTokens * kDim + kTokens * kTokens + kTokens * kValues) * 2 + kGateFloats * 4;
  Tile<kDim> k;
  Tile<kTokens> coupling;
  Tile<kValues> v;
  float* gates;

  __device__ explicit Stage(int index) {
    k.data = reinterpret_cast<BFloat16*>(shared_bytes + index * kBytes);
    coupling.data = k.data + kTokens * kDim;
    v.data = coupling.data + kTokens * kTokens;
    gates = reinterpret_cast<float*>(v.data + kTokens * kValues);
  }
  __device__ void fill(const Pass& pass, const Walk& walk, int tile, int64_t head, int64_t key_head, int first_value) {
    constexpr int kThreads = kPairThreads * kPairs;
    const int64_t slot = slot_of(pass, tile, static_cast<int>(head));
    const int token = walk.token(tile), count = walk.count(tile);
    copy_tile<kTokens, kDim, kThreads>(k, head_rows(pass.in.k, token, key_head), pass.in.k.stride, count);
    copy_tile<kTokens, kTokens, kThreads>(coupling, pass.slots.coupling + slot * kTokens * kTokens, kTokens, kTokens);
    copy_tile<kTokens, kValues, kThreads>(v, head_rows(pass.in.v, token, head) + first_value, pass.in.v.stride, count);
    copy_gates<kThreads>(gates, pass, slot);
  }
};

/// Block: a segment, a value head, 16 columns of values a pair of warps.
template <int kPairs, Keep kKeep>
__global__ void __launch_bounds__(kPairThreads* kPairs) scan_kernel(Pass pass, Carry carry, float* final_state) {
  using Buffer = Stage<kPairs>;
  const Walk walk(pass, static_cast<int>(blockIdx.x));
  if (walk.first >= walk.last) return;
  const DeltaRuleShape& shape = pass.in.shape;
  const int64_t head = blockIdx.y, key_head = head / (shape.value_heads / shape.key_heads);
  const PairPlace at;
  Exchange& exchange = reinterpret_cast<Exchange*>(shared_bytes + kStages * Buffer::kBytes)[at.pair];
  const int block_value = static_cast<int>(blockIdx.z) * Buffer::kValues, first_value = block_value + at.pair * kPairValues;

  HalfState state;
  state.load(walk.from_before() ? head_state(carry.in, 0, head, shape) : head_state(pass.in.initial_state, walk.begins_sequence(shape), head, shape),
             first_value, at);
#pragma unroll
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    if (walk.first + ahead < walk.last) Buffer(ahead).fill(pass, walk, walk.first + ahead, head, key_head, block_value);
    commit_copies();
  }
  int stage = 0;
  for (int tile = walk.first; tile < walk.last; ++tile) {
    wait_copies<kStages - 2>();
    __syncthreads();
    const Buffer buffer(stage);
    if (tile + kStages - 1 < walk.last)
      Buffer((stage + kStages - 1) % kStages).fill(pass, walk, tile + kStages - 1, head, key_head, block_value);
    commit_copies();
    stage = (stage + 1) % kStages;

    const int64_t slot = slot_of(pass, tile, static_cast<int>(head));
    const OwnGates gates(buffer.gates, at);
    float x[4][4];  // K S0, W, E in turn, transposed: this warp's tokens
    state_times_rows<kKeep != Keep::kNothing>(x, state, buffer.k, exchange, at, pass.slots.states + (slot * kDim + first_value) * kDim);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t v[4];
      buffer.v.load_a_transposed(v, at.pair * kPairValues, at.own_tokens() + 16 * step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 from_start = gates.from_start[2 * step + half];
        float(&w)[4] = x[2 * step + half];
        w[0] = low_half(v[2 * half]) - from_start.x * w[0];
        w[1] = high_half(v[2 * half]) - from_start.y * w[1];
        w[2] = low_half(v[2 * half + 1]) - from_start.x * w[2];
        w[3] = high_half(v[2 * half + 1]) - from_start.y * w[3];
      }
    }
    HalfA own, other;
    scaled_to_a(own, x, [&](int block) { return make_float2(-gates.beta[block].x, -gates.beta[block].y); });
    hand_over(other, own, 0, exchange, at);
    // E = W - G (beta o W): the triangle of the warp's own tokens, then for the later half what the earlier one adds.
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int block = step; block < 2; ++block) {
        uint32_t b[4];
        buffer.coupling.load_b_transposed(b, at.own_tokens() + 16 * block, at.own_tokens() + 16 * step);
        multiply_add_pair(x[2 * block], x[2 * block + 1], own[step], b);
      }
    if (at.half == 1)
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t b[4];
          buffer.coupling.load_b_transposed(b, kHalfTokens + 16 * block, 16 * step);
          multiply_add_pair(x[2 * block], x[2 * block + 1], other[step], b);
        }
    scaled_to_a(own, x, [&](int block) {
      return make_float2(gates.beta[block].x * gates.to_end[block].x, gates.beta[block].y * gates.to_end[block].y);
    });
    swap_halves(other, own, exchange, at);
    state.scale(buffer.gates[kGateFromStart + kTokens - 1]);
    add_to_state(state, own, other, buffer.k, at);
    if constexpr (kKeep != Keep::kNothing) {
      scaled_to_a(own, x, [&](int block) { return kKeep == Keep::kForOutput ? gates.beta[block] : make_float2(1.0f, 1.0f); });
      store_rows(pass.slots.errors + (slot * kDim + first_value) * kTokens, own, at);
    }
  }
  state.save(walk.goes_on() ? head_state(carry.out, 0, head, shape) : head_state(final_state, walk.ends_sequence(shape), head, shape), first_value, at);
}

template <int kPairs, Keep kKeep>
void launch(const Pass& pass, const Carry& carry, float* final_state, Stream stream) {
  const dim3 grid(static_cast<unsigned int>(pass.segment_count), static_cast<unsigned int>(pass.in.shape.value_heads), kDim / kPairValues / kPairs);
  constexpr int kSharedBytes = kStages * Stage<kPairs>::kBytes + kPairs * static_cast<int>(sizeof(Exchange));
  start(scan_kernel<kPairs, kKeep>, "delta_rule_scan", grid, kPairThreads * kPairs, kSharedBytes, stream, pass, carry, final_state);
}

}  // namespace

void scan(const Pass& pass, Keep keep, const Carry& carry, float* final_state, Stream stream) {
  constexpr int kPairs = 2;
  if (keep == Keep::kNothing)
    launch<kPairs, Keep::kNothing>(pass, carry, final_state, stream);
  else if (keep == Keep::kForOutput)
    launch<kPairs, Keep::kForOutput>(pass, carry, final_state, stream);
  else
    launch<kPairs, Keep::kForGradient>(pass, carry, final_state, stream);
}

}  // namespace oom::ops::delta_rule
