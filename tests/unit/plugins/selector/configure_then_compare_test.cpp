#include "selector/configure_then_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "selector/extrapolation.h"

namespace oom::selector {
namespace {

using ::testing::HasSubstr;

Candidate candidate(const std::string& experts, double predicted, bool fits = true) {
  Candidate made;
  made.plan.experts = experts;
  made.plan.activations = "offload";
  made.fits = fits;
  made.why_not = fits ? "" : "gpu 0 needs more";
  made.predicted_step_seconds = predicted;
  return made;
}

// Each candidate has a fixed cost and one a layer; kinds of layers add to that or take from it.
class LinearRuns final : public ShortRuns {
 public:
  struct Speed {
    double fixed, per_layer;
    bool fits = true;
    int64_t bytes_per_layer = 10;
    double resident = 0, retained_feed_forward = 0, retained_attention = 0;
    int64_t resident_bytes = 0;
    double step(int layers, const LayerMix& mix) const {
      return fixed + per_layer * layers + resident * mix.resident + retained_feed_forward * mix.retained_feed_forward + retained_attention * mix.retained_attention;
    }
    int64_t bytes(int layers, const LayerMix& mix) const { return int64_t{1000} + bytes_per_layer * layers + resident_bytes * mix.resident; }
  };
  LinearRuns(int layers, int unit, std::vector<Speed> speeds) : layers_(layers), unit_(unit), speeds_(std::move(speeds)) {}
  int layers() const override { return layers_; }
  int unit_layers() const override { return unit_; }
  Result run(size_t index, int layers, const LayerMix& mix) override {
    runs.emplace_back(index, layers);
    mixes.push_back(mix);
    for (const int count : {mix.resident, mix.retained_feed_forward, mix.retained_attention, mix.deferred}) {
      EXPECT_GE(count, 0);
      EXPECT_LE(count, layers);
    }
    const Speed& speed = speeds_.at(index);
    if (!speed.fits) throw BudgetError("too large");
    return {speed.step(layers, mix), {speed.bytes(layers, mix)}};
  }
  std::vector<std::pair<size_t, int>> runs;
  std::vector<LayerMix> mixes;

 private:
  int layers_, unit_;
  std::vector<Speed> speeds_;
};

TEST(ConfigureThenCompare, InstallsTheFasterMeasuredAgainstThePrediction) {
  // Short runs alone would choose ep: local's cost is a fixed one, which a deep model hardly notices.
  LinearRuns runs(48, 4, {{0.1, 0.05}, {0.5, 0.02}});
  std::string evidence;
  const ConfigureThenCompare selector({});
  EXPECT_EQ(selector.select({candidate("ep", 1.0), candidate("local", 2.0)}, &runs, evidence), 1u);
  EXPECT_THAT(runs.runs, ::testing::ElementsAre(std::pair<size_t, int>{0, 4}, std::pair<size_t, int>{0, 8}, std::pair<size_t, int>{1, 4}, std::pair<size_t, int>{1, 8}));
  EXPECT_THAT(evidence, HasSubstr("local with offload: the fastest in short runs"));
  EXPECT_THAT(evidence, HasSubstr("1.46"));  // 0.5 + 48 x 0.02
}

TEST(ConfigureThenCompare, OneThatFitsIsTakenWithoutARun) {
  LinearRuns runs(48, 4, {{0, 1}, {0, 1}});
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select({candidate("ep", 1.0, false), candidate("local", 2.0)}, &runs, evidence), 1u);
  EXPECT_TRUE(runs.runs.empty());
  EXPECT_THAT(evidence, HasSubstr("the only candidate that fits"));
}

TEST(ConfigureThenCompare, WithoutRunsThePredictionDecides) {
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select({candidate("ep", 1.0), candidate("local", 0.5)}, nullptr, evidence), 1u);
  EXPECT_THAT(evidence, HasSubstr("the shortest predicted step of 2"));
}

TEST(ConfigureThenCompare, ARunThatDoesNotFitLosesAndSaysWhy) {
  LinearRuns runs(48, 4, {{0.1, 0.01, false}, {0.5, 0.02}});
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select({candidate("ep", 1.0), candidate("local", 2.0)}, &runs, evidence), 1u);
  EXPECT_THAT(evidence, HasSubstr("ep: its short run does not fit: too large"));
}

TEST(ConfigureThenCompare, AShallowModelRunsWhole) {
  LinearRuns runs(6, 6, {{0.1, 0.05}, {0.2, 0.01}});
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select({candidate("ep", 1.0), candidate("local", 2.0)}, &runs, evidence), 1u);
  EXPECT_EQ(runs.runs.size(), 2u);
}

std::vector<int> first(int count) {
  std::vector<int> layers;
  for (int layer = 0; layer < count; ++layer) layers.push_back(layer);
  return layers;
}

// Five of 48 layers resident are none of four and one of eight: a line through such runs would take what a resident layer saves for what a layer costs.
TEST(ConfigureThenCompare, LayersOfEveryKindCostWhatTheyCost) {
  for (const int resident : {0, 1, 5, 11, 12, 24, 31, 47, 48}) {
    for (const int retained : {0, 3, 12, 29, 48}) {
      const LinearRuns::Speed mixed{.fixed = 0.4, .per_layer = 0.05, .bytes_per_layer = 7, .resident = -0.03, .retained_feed_forward = -0.011, .retained_attention = 0.002, .resident_bytes = 300};
      LinearRuns runs(48, 4, {mixed, {0.4, 0.2}});
      Candidate candidate = selector::candidate("ep", 1.0);
      candidate.plan.resident_layers = first(resident);
      candidate.plan.retained_feed_forward = first(retained);
      candidate.plan.retained_attention = first(resident / 2);
      const LayerMix whole = mix_of(candidate.plan);
      const Samples wanted = samples(whole, 4, 48);
      const auto sample = [&](int layers, const LayerMix& mix) { return Sample{layers, mix, runs.run(0, layers, mix)}; };
      std::vector<Sample> more;
      for (const LayerMix& mix : wanted.more) more.push_back(sample(8, mix));
      const Extrapolation found = extrapolate(sample(4, wanted.one), sample(8, wanted.two), more, whole, 48);
      EXPECT_NEAR(found.step_seconds, mixed.step(48, whole), 1e-9) << resident << " resident, " << retained << " retained";
      EXPECT_EQ(found.gpu_peak_bytes, std::vector<int64_t>{mixed.bytes(48, whole)}) << resident << " resident, " << retained << " retained";
      EXPECT_EQ(wanted.two.resident, 2 * wanted.one.resident);
    }
  }
  // A share that units have exactly needs no more runs, and the others one for each kind.
  EXPECT_TRUE(samples({.resident = 12, .retained_feed_forward = 24}, 4, 48).more.empty());
  EXPECT_EQ(samples({.resident = 5, .retained_feed_forward = 24, .retained_attention = 1}, 4, 48).more.size(), 2u);
}

// Here the resident layers of a plan decide, which one of its units has none of.
TEST(ConfigureThenCompare, InstallsThePathThatItsMixMakesFaster) {
  LinearRuns runs(48, 4, {{.fixed = 0.1, .per_layer = 0.05, .resident = -0.04}, {0.1, 0.0475}});
  Candidate resident = candidate("ep", 1.0);
  resident.plan.resident_layers = first(5);
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select({resident, candidate("local", 1.0)}, &runs, evidence), 0u) << evidence;
  EXPECT_THAT(evidence, HasSubstr(" 2.3 "));  // 0.1 + 48 x 0.05 - 5 x 0.04
  EXPECT_THAT(evidence, HasSubstr(" 2.38 "));  // 0.1 + 48 x 0.0475
}

TEST(ConfigureThenCompare, WhatShortRunsFindTooLargeLosesAndSaysWhy) {
  LinearRuns runs(48, 4, {{.fixed = 0.1, .per_layer = 0.01, .bytes_per_layer = int64_t{1} << 29}, {0.5, 0.02}});
  std::vector<Candidate> candidates{candidate("ep", 1.0), candidate("local", 2.0)};
  for (Candidate& each : candidates) {
    each.gpu_limit_bytes = {int64_t{20} << 30};
    each.gpu_peak_bytes = {int64_t{19} << 30};
  }
  candidates[1].summary = "state.resident 3";
  std::string evidence;
  EXPECT_EQ(ConfigureThenCompare({}).select(candidates, &runs, evidence), 1u) << evidence;
  EXPECT_THAT(evidence, HasSubstr("GPU 0 would need 24 GiB of 20 GiB (4 GiB too many)"));
  EXPECT_THAT(evidence, HasSubstr("state.resident 3"));
  EXPECT_THAT(evidence, HasSubstr("extrapolated [GiB]"));
  // Where all are, the faster one is taken all the same: its plan fits by prediction.
  for (Candidate& each : candidates) each.gpu_limit_bytes = {1};
  EXPECT_EQ(ConfigureThenCompare({}).select(candidates, &runs, evidence), 0u) << evidence;
  EXPECT_THAT(evidence, HasSubstr("every candidate is over a budget"));
}

TEST(Extrapolation, GoesThroughBothRuns) {
  const Extrapolation whole = extrapolate({4, {}, {1.0, {100}}}, Sample{8, {}, {1.4, {140}}}, {}, {}, 40);
  EXPECT_NEAR(whole.seconds_per_layer, 0.1, 1e-12);
  EXPECT_NEAR(whole.fixed_seconds, 0.6, 1e-12);
  EXPECT_NEAR(whole.step_seconds, 4.6, 1e-12);
  EXPECT_EQ(whole.gpu_peak_bytes[0], 140 + 10 * 32);
}

}  // namespace
}  // namespace oom::selector
