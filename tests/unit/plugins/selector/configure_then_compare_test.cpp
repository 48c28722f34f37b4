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

// Each candidate has a fixed cost and one a layer.
class LinearRuns final : public ShortRuns {
 public:
  struct Speed {
    double fixed, per_layer;
    bool fits = true;
  };
  LinearRuns(int layers, int unit, std::vector<Speed> speeds) : layers_(layers), unit_(unit), speeds_(std::move(speeds)) {}
  int layers() const override { return layers_; }
  int unit_layers() const override { return unit_; }
  Result run(size_t index, int layers) override {
    runs.emplace_back(index, layers);
    const Speed& speed = speeds_.at(index);
    if (!speed.fits) throw BudgetError("too large");
    return {speed.fixed + speed.per_layer * layers, {int64_t{1000} + 10 * layers}};
  }
  std::vector<std::pair<size_t, int>> runs;

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

TEST(Extrapolation, GoesThroughBothRuns) {
  const Extrapolation whole = extrapolate({1.0, {100}}, ShortRuns::Result{1.4, {140}}, 4, 40);
  EXPECT_NEAR(whole.seconds_per_layer, 0.1, 1e-12);
  EXPECT_NEAR(whole.fixed_seconds, 0.6, 1e-12);
  EXPECT_NEAR(whole.step_seconds, 4.6, 1e-12);
  EXPECT_EQ(whole.gpu_peak_bytes[0], 140 + 10 * 32);
}

}  // namespace
}  // namespace oom::selector
