#include "ops/delta_rule/workspace.h"

namespace oom::ops {
namespace delta_rule {
namespace {

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

}  // namespace

Workspace cut_workspace(void* from, const DeltaRuleShape& shape, bool backward) {
  Parts parts(from);
  Workspace workspace;
  const int64_t slots = pass_tiles(shape) * shape.value_heads, passes = (most_tiles(shape) + pass_tiles(shape) - 1) / pass_tiles(shape);
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
  workspace.bytes = parts.bytes();
  return workspace;
}

}  // namespace delta_rule

const char* delta_rule_refusal_cuda(const DeltaRuleShape& shape) {
  using namespace delta_rule;
  if (shape.element != Element::kBFloat16) return "FP32 operands: tensor cores read BF16";
  if (shape.key_dim != kDim || shape.value_dim != kDim) return "head dimensions other than 128";
  if (shape.tokens > INT32_MAX || shape.segments > INT32_MAX || most_tiles(shape) > INT32_MAX) return "more than 2^31 tokens";
  return nullptr;
}

int64_t delta_rule_workspace_bytes_cuda(const DeltaRuleShape& shape, bool backward) { return delta_rule::cut_workspace(nullptr, shape, backward).bytes; }
int64_t delta_rule_saved_bytes_cuda(const DeltaRuleShape&) { return 0; }

}  // namespace oom::ops
