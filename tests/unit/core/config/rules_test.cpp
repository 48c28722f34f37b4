#include <gmock/gmock.h>

#include <cstdlib>

#include "config/config.h"

namespace oom::config {
namespace {

using ::testing::HasSubstr;

Config with(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "model.path=m");
  return parse_config("[train]\nglobal_batch = 32\n", "a.toml", overrides, {});
}
std::string refusal(std::vector<std::string> overrides) {
  try {
    with(std::move(overrides));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(nothing)";
}

TEST(Rules, GlobalBatchIsAMultipleOfTheRanks) {
  EXPECT_EQ(refusal({"engine.ranks=3"}),
            "a.toml:2:16: train.global_batch: must be a multiple of the ranks = 3; got 32; near it: global_batch 30 or 33, ranks 2 or 4");
  EXPECT_EQ(refusal({"engine.ranks=64"}),
            "a.toml:2:16: train.global_batch: must be a multiple of the ranks = 64; got 32; near it: global_batch 64, ranks 32");
  EXPECT_EQ(refusal({"engine.ranks=8"}), "(nothing)");
  EXPECT_NO_THROW(check_ranks_divide_batch(with({}), 4));
  EXPECT_THROW(check_ranks_divide_batch(with({}), 5), ConfigError);
}

TEST(Rules, WsdNeedsDecaySteps) {
  EXPECT_THAT(refusal({"train.schedule=wsd"}), HasSubstr("a.toml:1:1: train.decay_steps: must be at least 1 with schedule = \"wsd\"; got 0"));
  EXPECT_EQ(refusal({"train.schedule=wsd", "train.decay_steps=1"}), "(nothing)");
}

TEST(Rules, WarmUpAndDecayFitTheSteps) {
  EXPECT_EQ(refusal({"train.warmup_steps=101"}), "--set train.warmup_steps: must be at most train.steps = 100; got 101");
  EXPECT_EQ(refusal({"train.warmup_steps=50", "train.schedule=wsd", "train.decay_steps=51"}),
            "--set train.decay_steps: must be at most 50, train.steps = 100 less train.warmup_steps = 50; got 51");
  EXPECT_EQ(refusal({"train.schedule=wsd", "train.decay_steps=101"}), "--set train.decay_steps: must be at most 100, train.steps = 100; got 101");
  EXPECT_EQ(refusal({"train.warmup_steps=101", "train.schedule=wsd", "train.decay_steps=20"}), "--set train.warmup_steps: must be at most train.steps = 100; got 101");
  EXPECT_EQ(refusal({"train.warmup_steps=50", "train.schedule=wsd", "train.decay_steps=50"}), "(nothing)");
  EXPECT_EQ(refusal({"train.warmup_steps=100", "train.decay_steps=50"}), "(nothing)");
}

TEST(Rules, LearningRatesAreOrdered) {
  EXPECT_THAT(refusal({"train.min_learning_rate=2e-5"}), HasSubstr("--set train.min_learning_rate: must be at most train.learning_rate = 1e-05; got 2e-05"));
  EXPECT_EQ(refusal({"train.min_learning_rate=1e-5"}), "(nothing)");
}

TEST(Rules, ClippingDefersUpdates) {
  EXPECT_THAT(refusal({"train.clip_norm=1", "train.updates=overlapped"}), HasSubstr("--set train.updates: must be \"deferred\" or \"auto\" when train.clip_norm = 1"));
  EXPECT_EQ(refusal({"train.clip_norm=1", "train.updates=deferred"}), "(nothing)");
  EXPECT_EQ(refusal({"train.clip_norm=0", "train.updates=overlapped"}), "(nothing)");
  EXPECT_EQ(with({"train.clip_norm=1"}).train().resolved_updates(), Updates::kDeferred);
}

TEST(Rules, TextHasNoDocuments) {
  EXPECT_THAT(refusal({"data.format=text", "data.documents=isolated"}), HasSubstr("--set data.documents: must be \"joined\" with format = \"text\""));
  EXPECT_THAT(refusal({"eval.path=held", "eval.format=text", "data.documents=isolated"}), HasSubstr("must be \"joined\" with eval.format = \"text\""));
  EXPECT_EQ(refusal({"data.format=text"}), "(nothing)");
}

TEST(Rules, EvaluationNeedsHeldOutData) {
  EXPECT_THAT(refusal({"eval.every=10"}), HasSubstr("--set eval.every: needs held-out data; cure: eval.path"));
  EXPECT_THAT(refusal({"checkpoint.keep_best=1"}), HasSubstr("--set checkpoint.keep_best: ranks checkpoints by evaluation loss, which needs held-out data"));
  EXPECT_THAT(refusal({"eval.path=held", "eval.holdout_samples=3"}), HasSubstr("--set eval.holdout_samples: must be 0 with eval.path = held"));
  EXPECT_THAT(refusal({"eval.format=text"}), HasSubstr("--set eval.format: is the format of eval.path, which is missing"));
  EXPECT_EQ(refusal({"eval.every=10", "eval.path=held", "eval.format=text", "checkpoint.keep_best=1"}), "(nothing)");
  EXPECT_EQ(refusal({"eval.every=10", "eval.holdout_samples=3"}), "(nothing)");
}

TEST(Paths, HomeIsExpandedAndTheResolvedConfigKeepsWhatWasWritten) {
  const char* before = std::getenv("HOME");
  const std::string saved = before ? before : "";
  setenv("HOME", "/home/a", 1);
  const Config config = with({"model.path=~/m", "data.path=~/d", "eval.path=~/e", "output.dir=~/o", "engine.plan=~/p", "engine.calibration=~/c", "engine.plugin_path=['~/x', '/y']"});
  const Config plain = with({"model.path=m~/~", "data.path=~other/d"});
  setenv("HOME", saved.c_str(), 1);
  EXPECT_EQ(config.model().path, "/home/a/m");
  EXPECT_EQ(config.data().path, "/home/a/d");
  EXPECT_EQ(config.eval().path, "/home/a/e");
  EXPECT_EQ(config.output().dir, "/home/a/o");
  EXPECT_EQ(config.engine().plan, "/home/a/p");
  EXPECT_EQ(config.engine().calibration, "/home/a/c");
  EXPECT_EQ(config.engine().plugin_path, (std::vector<std::string>{"/home/a/x", "/y"}));
  EXPECT_THAT(resolved_toml(config), HasSubstr("path = \"~/m\""));
  EXPECT_EQ(plain.model().path, "m~/~");
  EXPECT_EQ(plain.data().path, "~other/d");
}

TEST(Rules, HeadroomLeavesABudget) {
  EXPECT_EQ(refusal({"budget.gpu=1GiB", "budget.headroom=1024MiB"}), "--set budget.headroom: must be less than budget.gpu = 1.00 GiB; got 1.00 GiB");
  EXPECT_EQ(refusal({"budget.gpu=1GiB", "budget.headroom=512MiB"}), "(nothing)");
  EXPECT_EQ(refusal({"budget.gpu=64KiB", "budget.headroom=0B"}), "(nothing)");
  EXPECT_EQ(refusal({"budget.gpu=1GiB"}), "(nothing)");  // does not fit, which is not the user's slip: admission says so
}

TEST(Rules, AllBrokenRulesAreReported) {
  const std::string text = refusal({"engine.ranks=3", "train.schedule=wsd", "train.min_learning_rate=1"});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Ranges, OfTheContract) {
  for (const char* refused : {"train.betas=[0.9, 1.0]", "train.betas=[-0.1, 0.9]", "train.betas=[0.9]", "train.steps=0", "train.global_batch=0", "train.eps=0",
                              "train.weight_decay=-1", "train.learning_rate=inf", "budget.gpu=0", "budget.host=[]", "budget.host=[\"1GiB\", 0]",
                              "transfer.windows=0", "transfer.h2d_chunk=0", "data.sequence_length=0", "model.yarn_factor=0.5", "checkpoint.keep=0",
                              "checkpoint.every=-1", "eval.samples=0", "engine.ranks=0", "state.resident=-1", "model.seed=-1", "train.clip_norm=-1",
                              "train.steps=9223372036854775807", "output.dir=", "engine.device=tpu", "precision.compute=fp16"}) {
    EXPECT_THAT(refusal({refused}), HasSubstr("--set ")) << refused;
  }
}

}  // namespace
}  // namespace oom::config
