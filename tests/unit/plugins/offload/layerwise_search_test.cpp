// The dynamic program against every policy there is, priced by the definition of the model.
#include "../../../../plugins/offload/planner/layerwise_search.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

namespace oom::offload {
namespace {

constexpr int kLongestRun = 8;

class LayerwiseSearch : public ::testing::Test {
 protected:
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(generator_); }
  int64_t whole(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }

  // Few different values, so that plans tie in one dimension and differ in another; transfers range from hidden to those that bound a step.
  StepCosts costs(int layers, bool groups = false) {
    StepCosts costs;
    const double transfers = real(0.1, 3);
    costs.head = {real(0, 2), whole(0, 40)};
    costs.input_out_seconds = transfers * real(0.1, 1);
    costs.input_in_seconds = transfers * real(0.1, 1);
    costs.input_bytes = whole(5, 15);
    for (int layer = 0; layer < layers; ++layer) {
      LayerCosts its;
      const bool attends = whole(0, 1) == 1;
      for (const int keeps : {0, 1}) {
        its.passes[keeps].forward = {real(1, 2), whole(5, 20)};
        its.passes[keeps].backward = {real(2, 5) - (attends ? keeps : 0), whole(10, 50)};
        its.passes[keeps].traverse = {real(1, 2) / (1 + keeps), whole(5, 20)};
      }
      its.weights_seconds = transfers * real(0, 1.5);
      its.gradients_seconds = transfers * real(0, 1.5);
      its.result_bytes = attends ? whole(3, 12) : 0;
      its.result_out_seconds = attends ? transfers * real(0, 1) : 0;
      its.result_in_seconds = attends ? transfers * real(0, 1) : 0;
      its.carried_bytes = layer + 1;
      its.groups_heads = groups && attends && whole(0, 2) == 0;
      costs.layers.push_back(its);
    }
    return costs;
  }

  // Every policy of a space, whether it fits or not.
  static std::vector<Found> every_policy(const StepCosts& costs, const SearchSpace& space) {
    std::vector<Found> all;
    Policy policy;
    policy.buffers = space.buffers;
    policy.regenerate_cap = space.regenerate_cap;
    policy.layers.resize(costs.layers.size());
    const std::function<void(int)> choose = [&](int layer) {
      if (layer == costs.count()) {
        all.push_back({policy, price(costs, policy)});
        return;
      }
      const LayerChoices& choices = space.layers[layer];
      const bool is_free = costs.stays(layer, space.buffers);
      for (const Boundary place : {Boundary::kHost, Boundary::kGpu, Boundary::kRegenerate}) {
        const bool allowed = place == Boundary::kHost ? choices.host || is_free : place == Boundary::kGpu ? choices.gpu && !is_free : choices.regenerate && layer > 0 && !is_free;
        for (const bool keeps : {false, true}) {
          if (!allowed || (keeps ? !choices.keep || costs.layers[layer].result_bytes == 0 : !choices.discard)) continue;
          policy.layers[layer] = {place, keeps};
          choose(layer + 1);
        }
      }
    };
    choose(0);
    return all;
  }

  static bool fits(const Price& price, const SearchSpace& space) {
    return price.gpu_bytes <= space.gpu_bytes && price.host_bytes <= space.host_bytes && price.gpu_bytes + price.host_bytes <= space.shared_bytes;
  }

  std::minstd_rand generator_{7};
};

TEST_F(LayerwiseSearch, EqualsExhaustiveSearch) {
  int mixed = 0, tight = 0;
  for (int trial = 0; trial < 120; ++trial) {
    const int layers = static_cast<int>(whole(1, 6));
    const StepCosts some = costs(layers, trial % 2 == 1);
    SearchSpace space{.layers = std::vector<LayerChoices>(static_cast<size_t>(layers)), .buffers = whole(1, 3)};
    const int64_t caps[] = {1, 2, kLongestRun};
    space.regenerate_cap = caps[trial % 3];
    space.longest_run = kLongestRun;
    const std::vector<Found> all = every_policy(some, space);
    // Limits of some policy: at least that one fits, to the byte.
    const Price& limit = all[static_cast<size_t>(whole(0, static_cast<int64_t>(all.size()) - 1))].price;
    if (trial % 4 != 0) space.gpu_bytes = limit.gpu_bytes;
    if (trial % 5 != 0) space.host_bytes = limit.host_bytes;
    if (trial % 7 == 0) space.shared_bytes = limit.gpu_bytes + limit.host_bytes;
    double best = std::numeric_limits<double>::infinity(), best_of_all = best;
    for (const Found& found : all) {
      if (fits(found.price, space)) best = std::min(best, found.price.seconds);
      best_of_all = std::min(best_of_all, found.price.seconds);
    }
    const std::vector<Found> found = search_layers(some, space);
    ASSERT_FALSE(found.empty()) << "trial " << trial;
    EXPECT_NEAR(found.front().price.seconds, best, 1e-9) << "trial " << trial;
    for (const Found& plan : found) {
      const Price again = price(some, plan.policy);
      EXPECT_NEAR(plan.price.seconds, again.seconds, 1e-9) << "trial " << trial;
      EXPECT_EQ(plan.price.gpu_bytes, again.gpu_bytes) << "trial " << trial;
      EXPECT_EQ(plan.price.host_bytes, again.host_bytes) << "trial " << trial;
      EXPECT_TRUE(fits(again, space)) << "trial " << trial;
    }
    std::set<Boundary> places;
    for (const LayerPolicy& layer : found.front().policy.layers) places.insert(layer.boundary);
    mixed += places.size() == 3;
    tight += best > best_of_all + 1e-9;
  }
  EXPECT_GE(mixed, 3) << "host, GPU and regeneration in one plan";
  EXPECT_GE(tight, 30) << "limits that cost time";
}

TEST_F(LayerwiseSearch, ChoosesOnlyWhatIsLeftOpen) {
  for (int trial = 0; trial < 20; ++trial) {
    const StepCosts some = costs(6, true);
    SearchSpace space{.layers = std::vector<LayerChoices>(6), .buffers = 2, .regenerate_cap = kLongestRun, .longest_run = kLongestRun};
    space.layers[1] = {.host = false, .gpu = false};
    space.layers[2] = {.host = false, .regenerate = false};
    space.layers[3].keep = false;
    for (LayerChoices& choices : space.layers) choices.discard = true;
    const std::vector<Found> found = search_layers(some, space), all = every_policy(some, space);
    ASSERT_FALSE(found.empty());
    const double best = std::min_element(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.price.seconds < b.price.seconds; })->price.seconds;
    EXPECT_NEAR(found.front().price.seconds, best, 1e-9);
    EXPECT_EQ(found.front().policy.layers[1].boundary, Boundary::kRegenerate);
    EXPECT_EQ(found.front().policy.layers[2].boundary, Boundary::kGpu);
    EXPECT_FALSE(found.front().policy.layers[3].keep_attention);
  }
}

TEST_F(LayerwiseSearch, FindsNothingWhereNothingFits) {
  const StepCosts some = costs(5);
  SearchSpace space{.layers = std::vector<LayerChoices>(5), .buffers = 2, .regenerate_cap = kLongestRun, .longest_run = kLongestRun};
  space.gpu_bytes = some.layers[4].carried_bytes;
  EXPECT_TRUE(search_layers(some, space).empty());
}

// Thinned, a search is still near the best: deep models have too many partial plans to keep them all.
TEST_F(LayerwiseSearch, ThinnedIsNearTheBest) {
  for (int trial = 0; trial < 20; ++trial) {
    const StepCosts some = costs(14);
    SearchSpace space{.layers = std::vector<LayerChoices>(14), .buffers = 3, .regenerate_cap = kLongestRun, .longest_run = kLongestRun};
    space.host_bytes = 60;
    space.gpu_bytes = 140;
    const std::vector<Found> exact = search_layers(some, space);
    space.most_labels = 500;
    const std::vector<Found> thinned = search_layers(some, space);
    ASSERT_EQ(exact.empty(), thinned.empty());
    if (exact.empty()) continue;
    EXPECT_LE(thinned.front().price.seconds, 1.02 * exact.front().price.seconds) << "trial " << trial;
    EXPECT_TRUE(fits(thinned.front().price, space));
  }
}

}  // namespace
}  // namespace oom::offload
