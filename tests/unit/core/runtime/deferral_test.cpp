#include "runtime/deferral.h"

#include <gmock/gmock.h>

#include "planner_fixture.h"

namespace oom::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModelDescription model_of(int layers) {
  ModelDescription model;
  model.layers.assign(layers, {.mixer = "full_attention", .feed_forward = "moe"});
  return model;
}

Plan plan_of(int deferred, std::vector<int> resident = {}) {
  Plan plan;
  plan.deferred_layers = deferred;
  plan.resident_layers = std::move(resident);
  return plan;
}

TEST(Deferral, LayersThatWaitAreSpreadEvenly) {
  EXPECT_THAT(waiting_layers(plan_of(0), model_of(12)), IsEmpty());
  EXPECT_THAT(waiting_layers(plan_of(3), model_of(12)), ElementsAre(3, 7, 11));
  EXPECT_THAT(waiting_layers(plan_of(6), model_of(12)), ElementsAre(1, 3, 5, 7, 9, 11));
  EXPECT_THAT(waiting_layers(plan_of(12), model_of(12)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

// A resident layer's update takes no time of the host's threads.
TEST(Deferral, CountsLayersOnTheHostAlone) {
  EXPECT_THAT(waiting_layers(plan_of(2, {0, 1, 4, 9}), model_of(12)), ElementsAre(6, 11));
  EXPECT_THAT(waiting_layers(plan_of(8, {0, 1, 4, 9}), model_of(12)), ElementsAre(2, 3, 5, 6, 7, 8, 10, 11));
}

TEST(Deferral, OrdinaryParametersAloneOnTheHostCountByLayer) { EXPECT_THAT(waiting_layers(plan_of(1, {0, 1}), model_of(2)), ElementsAre(1)); }

TEST(Deferral, LayersWithoutExpertsDoNotCount) {
  ModelDescription model = model_of(4);
  model.layers[1].feed_forward = "dense";
  EXPECT_THAT(waiting_layers(plan_of(2), model), ElementsAre(2, 3));
}

}  // namespace
}  // namespace oom::runtime
