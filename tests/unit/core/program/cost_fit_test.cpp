#include "program/cost_fit.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace oom::program {
namespace {

std::vector<CostObservation> shapes() {
  std::vector<CostObservation> all;
  for (const double sequence : {512.0, 1024.0, 4096.0}) {
    for (const double batch : {1.0, 2.0, 8.0}) all.push_back({.tokens = sequence * batch, .sequence_length = sequence, .bytes = sequence * batch * 4096, .parameters = 1e6});
  }
  return all;
}

TEST(CostFit, FindsWhatItWasMadeFrom) {
  const KindCost truth{.fixed = 2e-5, .per_token = 3e-8, .per_token_context = 5e-12};
  std::vector<CostObservation> seen = shapes();
  for (CostObservation& each : seen) each.seconds = predicted_seconds(truth, each);
  const KindCost fit = fit_kind_cost(seen);
  for (const CostObservation& each : seen) EXPECT_NEAR(predicted_seconds(fit, each) / each.seconds, 1, 1e-6);
  // Beyond what was seen: the terms are the right ones, not merely some that go through the points.
  const CostObservation far{.tokens = 262144, .sequence_length = 131072, .bytes = 262144.0 * 4096, .parameters = 1e6};
  EXPECT_NEAR(predicted_seconds(fit, far) / predicted_seconds(truth, far), 1, 1e-5);
}

TEST(CostFit, NoiseAddsNoTerms) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  std::vector<CostObservation> seen = shapes();
  for (CostObservation& each : seen) each.seconds = 4e-8 * each.tokens * noise(random);
  const KindCost fit = fit_kind_cost(seen);
  for (const CostObservation& each : seen) EXPECT_NEAR(predicted_seconds(fit, each) / each.seconds, 1, 0.05);
  EXPECT_EQ(fit.per_token_context, 0);
}

TEST(CostFit, TermsAreNeverNegative) {
  std::vector<CostObservation> seen = shapes();
  for (size_t i = 0; i < seen.size(); ++i) seen[i].seconds = 1e-3 / static_cast<double>(1 + i);  // falls while every feature grows
  const KindCost fit = fit_kind_cost(seen);
  for (const double term : {fit.per_arithmetic, fit.per_traffic, fit.fixed, fit.per_token, fit.per_token_context, fit.per_byte, fit.per_parameter}) EXPECT_GE(term, 0);
}

TEST(CostFit, TellsArithmeticFromTraffic) {
  // Chunks of fewer tokens read the same weights: what they take is neither tokens nor any one rate.
  const KindCost truth{.per_arithmetic = 1.2, .per_traffic = 0.7, .fixed = 1e-4};
  std::vector<CostObservation> seen;
  for (const double tokens : {8192.0, 16384.0, 32768.0, 65536.0}) seen.push_back({.arithmetic = tokens * 1.5e-7, .traffic = tokens * 1.3e-7 + 2e-3, .tokens = tokens, .parameters = 3e8});
  for (CostObservation& each : seen) each.seconds = predicted_seconds(truth, each);
  const KindCost fit = fit_kind_cost(seen);
  const CostObservation far{.arithmetic = 262144 * 1.5e-7, .traffic = 262144 * 1.3e-7 + 2e-3, .tokens = 262144, .parameters = 3e8};
  EXPECT_NEAR(predicted_seconds(fit, far) / predicted_seconds(truth, far), 1, 0.02);
}

TEST(CostFit, OneObservationIsARateOfItsWork) {
  const CostObservation one{.arithmetic = 2e-3, .traffic = 1e-3, .tokens = 100, .sequence_length = 10, .parameters = 7, .seconds = 3e-3};
  CostObservation half = one;
  half.arithmetic /= 2;
  half.traffic /= 2;
  half.tokens /= 2;
  const KindCost fit = fit_kind_cost(std::vector{one});
  EXPECT_NEAR(predicted_seconds(fit, one), 3e-3, 1e-12);
  EXPECT_NEAR(predicted_seconds(fit, half), 1.5e-3, 1e-12);
}

TEST(CostFit, WithoutWorkItIsAConstant) {
  const std::vector<CostObservation> one{{.seconds = 1e-3}};
  EXPECT_NEAR(predicted_seconds(fit_kind_cost(one), one[0]), 1e-3, 1e-12);
  EXPECT_EQ(predicted_seconds(fit_kind_cost({}), one[0]), 0);
}

}  // namespace
}  // namespace oom::program
