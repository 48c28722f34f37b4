#include "oom/ops/experts.h"

#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "../counting_allocator.h"
#include "oom/ops/moe.h"
#include "operand.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::expect_identical;
using testing::expect_near;
using testing::fp64;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor network(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down, GatedActivation kind) {
  const at::Tensor z = at::matmul(x, gate_up.t());
  const int64_t width = down.size(1);
  const at::Tensor gate = z.narrow(1, 0, width), up = z.narrow(1, width, width);
  return at::matmul((kind == GatedActivation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * up, down.t());
}

class ExpertsTest : public testing::PlacedTest {
 protected:
  static constexpr int64_t kHidden = 64, kWidth = 48;
  ExpertWeights weights_of(int64_t experts, GatedActivation kind) {
    return {random({experts, 2 * kWidth, kHidden}, 1 / std::sqrt(double{kHidden})), random({experts, kHidden, kWidth}, 1 / std::sqrt(double{kWidth})), kind};
  }
  ExpertSinks sinks_of(const ExpertWeights& weights, double fill) const {
    return {{at::full(weights.gate_up.sizes(), fill, options().dtype(at::kFloat)), false}, {at::full(weights.down.sizes(), fill, options().dtype(at::kFloat)), false}};
  }
  /// In BF16, Z, A, dA' and the results are rounded once each; where a call has one row, a few numbers with steep activations decide the norm.
  void expect_close(const at::Tensor& actual, const at::Tensor& reference, const std::string& what, bool one_row = false) const {
    if (bf16())
      testing::expect_near_overall(actual, reference, one_row ? 1.2e-2 : 6e-3, what);
    else
      expect_near(actual, reference, 5e-6, what);
  }
};

TEST_P(ExpertsTest, AgreeWithAutograd) {
  for (const GatedActivation kind : {GatedActivation::kSilu, GatedActivation::kGeluTanh})
    for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{{5, 0, 31, 1}, {0, 0, 40}, {1}, {0, 1, 0}, {0, 0}}) {
      const int64_t experts = static_cast<int64_t>(counts.size());
      std::vector<int64_t> ends;
      for (int64_t total = 0; int64_t count : counts) ends.push_back(total += count);
      const int64_t rows = ends.back() + 3;  // three rows that belong to nobody
      const ExpertWeights weights = weights_of(experts, kind);
      at::Tensor x = random({rows, kHidden}), dy = random({rows, kHidden});
      const at::Tensor row_weights = random({rows}).abs().to(at::kFloat), offsets = int32(ends);
      x.narrow(0, ends.back(), 3).fill_(kNan);
      dy.narrow(0, ends.back(), 3).fill_(kNan);

      at::Tensor x64 = fp64(x).requires_grad_(), s64 = fp64(row_weights).requires_grad_();
      at::Tensor gate_up64 = fp64(weights.gate_up).requires_grad_(), down64 = fp64(weights.down).requires_grad_();
      at::Tensor y64 = at::zeros({rows, kHidden}, at::kDouble);
      for (int64_t expert = 0, begin = 0; expert < experts; begin = ends[expert++]) {
        const int64_t length = ends[expert] - begin;
        const at::Tensor part = network(x64.narrow(0, begin, length), gate_up64[expert], down64[expert], kind);
        y64.narrow(0, begin, length).copy_(part.detach());
        (part * s64.narrow(0, begin, length).unsqueeze(1) * fp64(dy).narrow(0, begin, length)).sum().backward();
      }

      const ExpertsForward forward = experts_forward(x, offsets, weights, true);
      expect_close(forward.y_rows, y64, "y", ends.back() == 1);
      EXPECT_FALSE(experts_forward(x, offsets, weights, false).z.defined());
      expect_identical(experts_gate_up(x, offsets, weights), forward.z, "Z made again");
      const ExpertSinks sinks = sinks_of(weights, kNan);
      const ExpertsBackward backward = experts_backward(dy, row_weights, x, forward.z, offsets, weights, sinks);
      expect_close(backward.dx_rows, x64.grad(), "dx", ends.back() == 1);
      if (!bf16() || ends.back() > 30) expect_close(backward.d_row_weights, s64.grad(), "ds");  // a sum that may cancel: many rows, or FP32
      expect_close(sinks.gate_up.tensor, gate_up64.grad(), "d gate_up", ends.back() == 1);
      expect_close(sinks.down.tensor, down64.grad(), "d down", ends.back() == 1);
      for (int64_t expert = 0; expert < experts; ++expert)
        if (counts[expert] == 0) expect_identical(sinks.down.tensor[expert], at::zeros_like(sinks.down.tensor[expert]), "an expert without rows");
    }
}

TEST_P(ExpertsTest, FrozenWeightsNeedNoSinks) {
  const ExpertWeights weights = weights_of(2, GatedActivation::kSilu);
  const at::Tensor x = random({9, kHidden}), dy = random({9, kHidden}), ends = int32({4, 9});
  const ExpertSinks sinks = sinks_of(weights, 0);
  const at::Tensor z = experts_gate_up(x, ends, weights), ones = at::full({9}, 1, options().dtype(at::kFloat));
  const ExpertsBackward trained = experts_backward(dy, ones, x, z.clone(), ends, weights, sinks);
  const ExpertsBackward frozen = experts_backward(dy, {}, x, z.clone(), ends, weights, {});
  expect_identical(frozen.dx_rows, trained.dx_rows, "dx");
  EXPECT_FALSE(frozen.d_row_weights.defined());
}

struct MoeCase {
  const char* what;
  std::vector<std::vector<int64_t>> choices;  // [T][K]
};

const std::vector<MoeCase>& moe_cases() {
  static const std::vector<MoeCase> cases = [] {
    std::vector<std::vector<int64_t>> spread, one;
    for (int64_t token = 0; token < 37; ++token) spread.push_back({(token * 3) % 5, 5 + token % 2});  // expert 7 has no tokens
    for (int64_t token = 0; token < 29; ++token) one.push_back({4});
    return std::vector<MoeCase>{{"spread", spread}, {"all tokens to one expert", one}, {"one token", {{6, 0}}}};
  }();
  return cases;
}

TEST_P(ExpertsTest, MoeAgreesWithAutogradOverTokens) {
  const int64_t experts = 8;
  for (const MoeCase& c : moe_cases()) {
    const int64_t tokens = static_cast<int64_t>(c.choices.size()), choices = static_cast<int64_t>(c.choices[0].size());
    std::vector<int64_t> flat;
    for (const auto& row : c.choices) flat.insert(flat.end(), row.begin(), row.end());
    const Routing routing{int32(flat).view({tokens, choices}), random({tokens, choices}).abs().to(at::kFloat)};
    const ExpertWeights weights = weights_of(experts, GatedActivation::kSilu);
    const at::Tensor x = random({tokens, kHidden}), dy = random({tokens, kHidden}), residual = random({tokens, kHidden});

    at::Tensor x64 = fp64(x).requires_grad_(), s64 = fp64(routing.weights).requires_grad_();
    at::Tensor gate_up64 = fp64(weights.gate_up).requires_grad_(), down64 = fp64(weights.down).requires_grad_();
    at::Tensor y64 = fp64(residual);
    for (int64_t choice = 0; choice < choices; ++choice)
      for (int64_t token = 0; token < tokens; ++token) {
        const int64_t expert = c.choices[token][choice];
        const at::Tensor part = network(x64.narrow(0, token, 1), gate_up64[expert], down64[expert], weights.activation) * s64[token][choice];
        y64.narrow(0, token, 1).add_(part.detach());
        (part * fp64(dy).narrow(0, token, 1)).sum().backward();
      }

    const MoeForward forward = moe_forward(x, routing, weights, true, {.residual = residual});
    expect_close(forward.y, y64, cat(c.what, ": y"));
    const ExpertSinks sinks = sinks_of(weights, kNan);
    const MoeBackward replayed = moe_backward(dy, x, routing, forward.permutation, {}, weights, sinks);
    expect_close(sinks.gate_up.tensor, gate_up64.grad(), cat(c.what, ": d gate_up"));
    expect_close(sinks.down.tensor, down64.grad(), cat(c.what, ": d down"));
    const MoeBackward backward = moe_backward(dy, x, routing, forward.permutation, forward.z, weights, sinks);
    expect_close(backward.dx, x64.grad(), cat(c.what, ": dx"));
    if (!bf16() || tokens > 1) expect_close(backward.d_weights, s64.grad(), cat(c.what, ": d weights"));
    expect_identical(replayed.dx, backward.dx, cat(c.what, ": dx from a replayed Z"));
    expect_identical(sinks.gate_up.tensor[3].isnan().any(), at::zeros({}, options().dtype(at::kBool)), "no NaN of the sink remains");
  }
}

TEST_P(ExpertsTest, TokenChunksAddUp) {
  const int64_t tokens = 50, experts = 4;
  std::vector<int64_t> flat;
  for (int64_t token = 0; token < tokens; ++token) flat.insert(flat.end(), {token % 4, (token + 1 + token % 3) % 4});
  const Routing routing{int32(flat).view({tokens, 2}), random({tokens, 2}).abs().to(at::kFloat)};
  const ExpertWeights weights = weights_of(experts, GatedActivation::kSilu);
  const at::Tensor x = random({tokens, kHidden}), dy = random({tokens, kHidden});
  const MoeForward forward = moe_forward(x, routing, weights, false);
  const ExpertSinks whole = sinks_of(weights, 0), parts = sinks_of(weights, 0);
  const MoeBackward backward = moe_backward(dy, x, routing, forward.permutation, {}, weights, whole);
  ExpertSinks adding = parts;
  adding.gate_up.accumulate = adding.down.accumulate = true;
  for (int64_t first = 0; first < tokens; first += 17) {
    const int64_t count = std::min<int64_t>(17, tokens - first);
    const Routing part{routing.indices.narrow(0, first, count).contiguous(), routing.weights.narrow(0, first, count).contiguous()};
    const MoeForward slice = moe_forward(x.narrow(0, first, count), part, weights, false);
    expect_close(slice.y, fp64(forward.y.narrow(0, first, count)), "y of a chunk");
    const MoeBackward gradient = moe_backward(dy.narrow(0, first, count), x.narrow(0, first, count), part, slice.permutation, {}, weights, adding);
    expect_close(gradient.dx, fp64(backward.dx.narrow(0, first, count)), "dx of a chunk");
  }
  expect_close(parts.gate_up.tensor, fp64(whole.gate_up.tensor), "d gate_up");
  expect_close(parts.down.tensor, fp64(whole.down.tensor), "d down");
}

class ExpertsMemory : public testing::PlacedTest {};

// Widths on either side of the hidden size: what makes the peak is another tensor.
TEST_P(ExpertsMemory, IsWhatIsTold) {
  c10::SetCPUAllocator(&oom::testing::counter(), /*priority=*/255);
  constexpr int64_t kRows = 1000, kExperts = 4, kHidden = 64;
  for (const int64_t width : {16, 48, 96}) {
    const ExpertsProblem problem{.device = c10::DeviceType::CPU, .dtype = at::kFloat, .rows = kRows, .experts = kExperts, .hidden = kHidden, .width = width};
    const ExpertWeights weights{random({kExperts, 2 * width, kHidden}), random({kExperts, kHidden, width})};
    const ExpertSinks sinks{{at::zeros(weights.gate_up.sizes(), options()), false}, {at::zeros(weights.down.sizes(), options()), false}};
    const at::Tensor x = random({kRows, kHidden}), ends = int32({300, 300, 700, kRows});
    ExpertsForward forward;
    for (const bool save : {false, true}) {
      forward = {};
      EXPECT_EQ(oom::testing::measure([&] { forward = experts_forward(x, ends, weights, save); }).workspace_bytes, experts_forward_workspace_bytes(problem, save)) << width << " " << save;
    }
    ExpertsBackward backward;
    const auto run = [&] { backward = experts_backward(x, {}, x, forward.z, ends, weights, sinks); };
    EXPECT_EQ(oom::testing::measure(run).workspace_bytes, experts_backward_workspace_bytes(problem)) << width;
  }
}

// The grouped kernel of sm_90 leaves the weights' gradients in BF16 before they join their sinks.
TEST(ExpertsMemoryOnGpus, CountsWeightGradients) {
  ExpertsProblem problem{.device = c10::DeviceType::CUDA, .dtype = at::kBFloat16, .rows = 1000, .experts = 128, .hidden = 2048, .width = 768};
  const int64_t gradients = 128 * 2 * 768 * 2048 * 2, activations = problem.rows * 768 * 2, results = problem.rows * 2048 * 2;
  EXPECT_EQ(experts_backward_workspace_bytes(problem), activations + gradients - results);
  problem.rows = 1000000;
  EXPECT_EQ(experts_backward_workspace_bytes(problem), problem.rows * 768 * 2);
}

INSTANTIATE_TEST_SUITE_P(Places, ExpertsMemory, ::testing::Values(testing::Place{c10::DeviceType::CPU, at::kFloat}), testing::place_name);
INSTANTIATE_TEST_SUITE_P(Places, ExpertsTest, all_places(), testing::place_name);

}  // namespace
}  // namespace oom::ops
