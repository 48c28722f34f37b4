/// The gated delta rule on CUDA: the order of its kernels.
#include <algorithm>
#include <vector>

#include "ops/delta_rule/start.cuh"
#include "ops/delta_rule/workspace.h"

namespace oom::ops {
namespace {

using namespace delta_rule;

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

void delta_rule_forward_cuda(const DeltaRuleForwardLaunch& launch, Stream stream) {
  require_vectors(launch.in);
  const Workspace workspace = cut_workspace(launch.workspace, launch.in.shape, false);
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
  const Workspace workspace = cut_workspace(launch.workspace, launch.in.shape, true);
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
