/// The gated delta rule on CUDA: the order of its kernels, and the memory between them.
#include <algorithm>
#include <vector>

#include "ops/delta_rule/kernels.h"
#include "ops/delta_rule/start.cuh"

namespace oom::ops {
namespace {

using namespace delta_rule;

int64_t most_tiles(const DeltaRuleShape& shape) { return shape.tokens / kTokens + shape.segments; }
int64_t pass_tiles(const DeltaRuleShape& shape) { return std::min(most_tiles(shape), std::max<int64_t>(1, shape.pass_slots / shape.value_heads)); }
int64_t most_passes(const DeltaRuleShape& shape) { return (most_tiles(shape) + pass_tiles(shape) - 1) / pass_tiles(shape); }

/// Cuts one allocation into parts of 256-byte alignment; without one it only counts.
class Parts {
 public:
  explicit Parts(void* from) : from_(static_cast<unsigned char*>(from)) {}
  template <typename Value>
  Value* take(int64_t count) {
    unsigned char* part = from_ == nullptr ? nullptr : from_ + bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(Value)) + 255) / 256 * 256;
    return reinterpret_cast<Value*>(part);
  }
  int64_t bytes() const { return bytes_; }

 private:
  unsigned char* from_;
  int64_t bytes_ = 0;
};

struct Workspace {
  SegmentSpan* segments = nullptr;
  TileSpan* tiles = nullptr;
  Slots slots;
  std::vector<float*> states;    ///< at passes' edges: one a pass for backward, two taken in turn for forward
  std::vector<float*> d_states;  ///< two taken in turn
};

Workspace cut(Parts& parts, const DeltaRuleShape& shape, bool backward) {
  Workspace workspace;
  const int64_t slots = pass_tiles(shape) * shape.value_heads, passes = most_passes(shape);
  workspace.segments = parts.take<SegmentSpan>(shape.segments);
  workspace.tiles = parts.take<TileSpan>(most_tiles(shape));
  workspace.slots.gates = parts.take<float>(slots * 4 * kTokens);
  const auto halves = [&](int64_t count) { return reinterpret_cast<__nv_bfloat16*>(parts.take<uint16_t>(slots * count)); };
  workspace.slots.coupling = halves(kTokens * kTokens);
  workspace.slots.scores = halves(kTokens * kTokens);
  workspace.slots.states = halves(kDim * kDim);
  workspace.slots.errors = halves(kDim * kTokens);
  if (backward) {
    workspace.slots.d_states = halves(kDim * kDim);
    workspace.slots.d_errors = halves(kDim * kTokens);
  }
  const auto edges = [&](int64_t count) {
    std::vector<float*> states;
    for (int64_t i = 0; passes > 1 && i < count; ++i) states.push_back(parts.take<float>(shape.value_heads * kDim * kDim));
    return states;
  };
  workspace.states = edges(backward ? passes + 1 : 2);
  if (backward) workspace.d_states = edges(2);
  return workspace;
}

/// The passes, each with the segments that it touches.
std::vector<Pass> passes_of(const DeltaRuleOperands& in, const Workspace& workspace) {
  const DeltaRuleShape& shape = in.shape;
  std::vector<int64_t> first_tile(static_cast<size_t>(shape.segments) + 1, 0);
  for (int64_t i = 0; i < shape.segments; ++i) {
    const int64_t length = in.starts != nullptr ? in.host_starts[i + 1] - in.host_starts[i] : shape.tokens / shape.sequences;
    first_tile[static_cast<size_t>(i) + 1] = first_tile[static_cast<size_t>(i)] + (length + kTokens - 1) / kTokens;
  }
  std::vector<Pass> passes;
  const int64_t step = pass_tiles(shape);
  for (int64_t begin = 0; begin < first_tile.back(); begin += step) {
    Pass pass{.in = in, .segments = workspace.segments, .tiles = workspace.tiles, .slots = workspace.slots};
    pass.tile_begin = static_cast<int>(begin);
    pass.tile_end = static_cast<int>(std::min(begin + step, first_tile.back()));
    const auto first = std::upper_bound(first_tile.begin(), first_tile.end(), begin) - 1;
    const auto last = std::lower_bound(first_tile.begin(), first_tile.end(), pass.tile_end);
    pass.segment_begin = static_cast<int>(first - first_tile.begin());
    pass.segment_count = static_cast<int>(last - first);
    passes.push_back(pass);
  }
  return passes;
}

void require_vectors(const TokenRows& rows, const char* name) {
  OOM_CHECK(reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 8 == 0, name, " must begin on 16 bytes in every row; address ", rows.data,
            ", stride ", rows.stride);
}
void require_vectors(const DeltaRuleOperands& in) {
  require_vectors(in.q, "q");
  require_vectors(in.k, "k");
  require_vectors(in.v, "v");
}

}  // namespace

const char* delta_rule_refusal_cuda(const DeltaRuleShape& shape) {
  if (shape.element != Element::kBFloat16) return "FP32 operands: tensor cores read BF16";
  if (shape.key_dim != kDim || shape.value_dim != kDim) return "head dimensions other than 128";
  if (shape.tokens > INT32_MAX || shape.segments > INT32_MAX || most_tiles(shape) > INT32_MAX) return "more than 2^31 tokens";
  return nullptr;
}

int64_t delta_rule_workspace_bytes_cuda(const DeltaRuleShape& shape, bool backward) {
  Parts parts(nullptr);
  cut(parts, shape, backward);
  return parts.bytes();
}

int64_t delta_rule_saved_bytes_cuda(const DeltaRuleShape&) { return 0; }

void delta_rule_forward_cuda(const DeltaRuleForwardLaunch& launch, Stream stream) {
  require_vectors(launch.in);
  Parts parts(launch.workspace);
  const Workspace workspace = cut(parts, launch.in.shape, false);
  const std::vector<Pass> passes = passes_of(launch.in, workspace);
  find_tiles(launch.in, workspace.segments, workspace.tiles, passes.back().tile_end, stream);
  for (size_t i = 0; i < passes.size(); ++i) {
    Carry carry;
    if (passes.size() > 1) carry = {workspace.states[i % 2], workspace.states[(i + 1) % 2]};
    prepare(passes[i], stream);
    scan(passes[i], Keep::kForOutput, carry, launch.final_state, stream);
    write_output(passes[i], static_cast<__nv_bfloat16*>(launch.out), stream);
  }
}

void delta_rule_backward_cuda(const DeltaRuleBackwardLaunch& launch, Stream stream) {
  require_vectors(launch.in);
  require_vectors(launch.dq, "dq");
  require_vectors(launch.dk, "dk");
  require_vectors(launch.dv, "dv");
  Parts parts(launch.workspace);
  const Workspace workspace = cut(parts, launch.in.shape, true);
  const std::vector<Pass> passes = passes_of(launch.in, workspace);
  const size_t last = passes.size() - 1;
  find_tiles(launch.in, workspace.segments, workspace.tiles, passes.back().tile_end, stream);
  const auto carry_of = [&](size_t i) { return last == 0 ? Carry{} : Carry{workspace.states[i], workspace.states[i + 1]}; };
  for (size_t i = 0; i < last; ++i) {  // the states that later passes begin from
    prepare(passes[i], stream);
    scan(passes[i], Keep::kNothing, carry_of(i), nullptr, stream);
  }
  for (size_t i = last + 1; i-- > 0;) {
    Carry d_carry;
    if (last > 0) d_carry = {workspace.d_states[(i + 1) % 2], workspace.d_states[i % 2]};
    prepare(passes[i], stream);
    scan(passes[i], Keep::kForGradient, carry_of(i), nullptr, stream);
    reverse_scan(passes[i], launch, d_carry, stream);
    write_gradients(passes[i], launch, stream);
  }
}

}  // namespace oom::ops
