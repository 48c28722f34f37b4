#include "config/differences.h"

#include <gmock/gmock.h>

namespace oom::config {
namespace {

constexpr std::string_view kTables[] = {"data", "train"};

Config with(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "model.path=m");
  return parse_config("", "a.toml", overrides, {});
}
std::vector<std::string> differences_of(const std::vector<std::string>& now, const std::string& before) {
  std::vector<std::string> lines;
  for (const SettingDifference& each : differences(with(now), before, kTables)) lines.push_back(cat(each.table, ".", each.key, ": ", each.before, " -> ", each.now));
  return lines;
}

TEST(Differences, OfEveryFormAreToldWithBothValues) {
  const std::string before = resolved_toml(with({"data.shuffle_seed=1", "train.betas=[0.8, 0.9]", "data.path='a b'", "train.decay_norms=false"}));
  EXPECT_THAT(differences_of({"data.path=c", "train.learning_rate=1"}, before),
              ::testing::ElementsAre("data.path: \"a b\" -> \"c\"", "data.shuffle_seed: 1 -> left out", "train.learning_rate: 1e-05 -> 1.0", "train.betas: [0.8, 0.9] -> [0.9, 0.999]",
                                     "train.decay_norms: false -> true"));
}

TEST(Differences, NoneWhereNothingOrAnotherTableDiffers) {
  const std::vector<std::string> same{"data.shuffle_seed=1", "train.learning_rate=0.1", "train.router_aux_loss=0"};
  const std::string before = resolved_toml(with(same));
  EXPECT_THAT(differences_of(same, before), ::testing::IsEmpty());
  std::vector<std::string> elsewhere = same;
  elsewhere.push_back("engine.ranks=4");
  EXPECT_THAT(differences_of(elsewhere, before), ::testing::IsEmpty());
}

TEST(Differences, AKeyOfANewerVersionCountsWithItsDefault) {
  EXPECT_THAT(differences_of({}, "[data]\nsequence_length = 4096\n"), ::testing::IsEmpty());
  EXPECT_THAT(differences_of({"train.steps=7"}, "train = 3\n"), ::testing::ElementsAre("train.steps: 100 -> 7"));
}

}  // namespace
}  // namespace oom::config
