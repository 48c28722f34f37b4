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
  for (const double term : {fit.fixed, fit.per_token, fit.per_token_context, fit.per_byte, fit.per_parameter}) EXPECT_GE(term, 0);
}

TEST(CostFit, OneObservationIsAConstantOrARate) {
  const std::vector<CostObservation> one{{.tokens = 100, .seconds = 1e-3}};
  EXPECT_NEAR(predicted_seconds(fit_kind_cost(one), one[0]), 1e-3, 1e-12);
  EXPECT_EQ(predicted_seconds(fit_kind_cost({}), one[0]), 0);
}

}  // namespace
}  // namespace oom::program
