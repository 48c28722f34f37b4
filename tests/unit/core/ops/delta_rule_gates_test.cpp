#include "oom/ops/delta_rule_gates.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class DeltaRuleGatesTest : public PoisonedTest {};

TEST_P(DeltaRuleGatesTest, AgreeWithAutograd) {
  for (const auto& [tokens, heads] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {37, 4}, {700, 32}, {9000, 6}}) {
    const std::string what = std::to_string(tokens) + " tokens, " + std::to_string(heads) + " heads: ";
    // Both gates lie side by side in one projection here; the extremes saturate softplus and sigmoid.
    const at::Tensor both = random({tokens, 2 * heads}, 6.0), a = both.narrow(1, 0, heads), b = both.narrow(1, heads, heads);
    const at::Tensor a_log = random({heads}).to(at::kFloat), dt_bias = random({heads});
    const at::Tensor d_log_decay = random({tokens, heads}).to(at::kFloat), d_beta = random({tokens, heads}).to(at::kFloat);
    const at::Tensor a64 = fp64(a).requires_grad_(), b64 = fp64(b).requires_grad_(), a_log64 = fp64(a_log).requires_grad_(), dt64 = fp64(dt_bias).requires_grad_();
    const at::Tensor log_decay = -at::exp(a_log64) * at::softplus(a64 + dt64, 1, 1000), beta = at::sigmoid(b64);
    ((log_decay * fp64(d_log_decay)).sum() + (beta * fp64(d_beta)).sum()).backward();

    const DeltaRuleGates gates = delta_rule_gates_forward(a, b, a_log, dt_bias);
    expect_near(gates.log_decay, log_decay, 2e-6, what + "log decay");
    expect_near(gates.beta, beta, 2e-6, what + "beta");
    for (const bool accumulate : {false, true}) {
      const auto start = [&] { return accumulate ? at::full({heads}, 3.0, fp32()) : at::empty({heads}, fp32()); };
      const at::Tensor a_log_sink = start(), dt_sink = start();
      const DeltaRuleGateGradients g = delta_rule_gates_backward(d_log_decay, d_beta, a, b, a_log, dt_bias, {a_log_sink, accumulate}, {dt_sink, accumulate});
      expect_rounded(g.da, a64.grad(), what + "da", 2e-6);
      expect_rounded(g.db, b64.grad(), what + "db", 2e-6);
      expect_rounded(a_log_sink, a_log64.grad() + (accumulate ? 3.0 : 0.0), what + "d A_log", 1e-5);
      expect_rounded(dt_sink, dt64.grad() + (accumulate ? 3.0 : 0.0), what + "d dt_bias", 1e-5);
    }
  }
}

TEST_P(DeltaRuleGatesTest, NoTokensGiveZeroGradients) {
  const at::Tensor none = random({0, 4}), parameter = random({4}), sink = at::empty({4}, fp32()), other = at::empty({4}, fp32());
  const at::Tensor nothing = none.to(at::kFloat);
  delta_rule_gates_backward(nothing, nothing, none, none, parameter, parameter, {sink, false}, {other, false});
  EXPECT_EQ(sink.abs().sum().item<float>() + other.abs().sum().item<float>(), 0.0f);
}

TEST_P(DeltaRuleGatesTest, WrongOperandsAreRefused) {
  EXPECT_THROW(delta_rule_gates_forward(random({5, 4}), random({5, 3}), random({4}), random({4})), Error) << "b of three heads";
  EXPECT_THROW(delta_rule_gates_forward(random({5, 4}), random({5, 4}), random({3}), random({4})), Error) << "A_log of three heads";
}

INSTANTIATE_TEST_SUITE_P(Places, DeltaRuleGatesTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
