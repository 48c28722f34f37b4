#include "config/config.h"

#include "base/file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "contract_schemas.h"

namespace oom::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kContract = R"toml([model]
path = "models/Qwen3-30B-A3B"
weights = "random"
seed = 7
[data]
format = "megatron"
path = "data/corpus"
sequence_length = 4096
documents = "isolated"
shuffle_seed = 1
[train]
steps = 100
global_batch = 32
learning_rate = 1e-4
schedule = "wsd"
warmup_steps = 10
decay_steps = 20
betas = [0.9, 0.95]
clip_norm = 1
router_aux_loss = 0.0
[precision]
compute = "fp32"
[engine]
device = "cpu"
ranks = 2
experts = "ep"
plugin_path = ["~/.oom/plugins"]
[budget]
gpu = "80GiB"
host = ["120GiB", "121GiB"]
[state]
resident = [3, 1]
placement = "contiguous"
resident_ordinary = "none"
[transfer]
h2d_chunk = "128MiB"
ordinary_delivery = "shard"
[ep]
retain = 4
routing_chunk = 8192
[offload]
keep_boundaries = "3+1"
[output]
dir = "runs/qwen3"
trace_steps = [5, 3]
[eval]
samples = 10
)toml";

Config parse(const std::string& text, std::vector<std::string> overrides = {}) {
  return parse_config(text, "a.toml", overrides, contract_schemas());
}
Config with_model(const std::string& text, std::vector<std::string> overrides = {}) {
  return parse("model.path = 'm'\n" + text, std::move(overrides));
}
std::string refusal(const std::string& text, std::vector<std::string> overrides = {}) {
  try {
    parse(text, std::move(overrides));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(nothing)";
}

TEST(Config, ReadsTheContract) {
  const Config config = parse(kContract);
  EXPECT_EQ(config.model().path, "models/Qwen3-30B-A3B");
  EXPECT_EQ(config.model().weights, WeightSource::kRandom);
  EXPECT_EQ(config.model().seed, 7);
  EXPECT_EQ(config.data().documents, Documents::kIsolated);
  EXPECT_EQ(config.data().shuffle_seed, 1);
  EXPECT_EQ(config.train().schedule, Schedule::kWsd);
  EXPECT_EQ(config.train().beta2, 0.95);
  EXPECT_EQ(config.train().resolved_updates(), Updates::kDeferred);
  EXPECT_EQ(config.train().router_aux_loss, 0.0);
  EXPECT_EQ(config.precision().resolved_gradients(), Dtype::kFp32);
  EXPECT_EQ(config.engine().ranks, 2);
  EXPECT_EQ(config.engine().experts, "ep");
  EXPECT_THAT(config.engine().plugin_path, ElementsAre(base::expand_home("~/.oom/plugins").string()));
  EXPECT_EQ(config.budget().gpu_bytes, int64_t{80} << 30);
  EXPECT_EQ(config.budget().host_bytes, std::nullopt);
  EXPECT_THAT(config.budget().host_bytes_by_node, ElementsAre(int64_t{120} << 30, int64_t{121} << 30));
  EXPECT_THAT(config.state().resident.layers, ElementsAre(1, 3));
  EXPECT_EQ(config.state().placement, Placement::kContiguous);
  EXPECT_EQ(config.state().resident_ordinary, OrdinaryResidency::kNone);
  EXPECT_EQ(config.state().weights, std::nullopt);
  EXPECT_EQ(config.transfer().h2d_chunk_bytes, 128 << 20);
  EXPECT_EQ(config.transfer().ordinary_delivery, Delivery::kShard);
  EXPECT_TRUE(config.output().traces(3) && config.output().traces(5) && !config.output().traces(4));
  EXPECT_EQ(config.eval().samples, 10);
  EXPECT_EQ(config.table("ep").get_integer("routing_chunk"), 8192);
  EXPECT_TRUE(config.table("local").is_auto("delivery"));
  EXPECT_EQ(config.where("engine", "ranks"), "a.toml:25:9: engine.ranks");
}

TEST(Config, HasTheDefaultsOfTheContract) {
  const Config config = with_model("");
  EXPECT_EQ(config.model().weights, WeightSource::kLoad);
  EXPECT_EQ(config.model().yarn_factor, 1.0);
  EXPECT_EQ(config.data().path, std::nullopt);
  EXPECT_EQ(config.data().shuffle_seed, std::nullopt);
  EXPECT_EQ(config.train().weight_decay, 0.01);
  EXPECT_EQ(config.train().beta1, 0.9);
  EXPECT_EQ(config.train().eps, 1e-8);
  EXPECT_EQ(config.train().updates, std::nullopt);
  EXPECT_EQ(config.train().resolved_updates(), Updates::kOverlapped);
  EXPECT_EQ(config.train().router_aux_loss, std::nullopt);
  EXPECT_FALSE(config.train().drain);
  EXPECT_TRUE(config.train().decay_norms);
  EXPECT_EQ(config.engine().ranks, std::nullopt);
  EXPECT_EQ(config.engine().experts, "auto");
  EXPECT_EQ(config.engine().activations, "offload");
  EXPECT_FALSE(config.engine().allow_plan_mismatch);
  EXPECT_EQ(config.budget().gpu_bytes, std::nullopt);
  EXPECT_EQ(config.budget().headroom_bytes, 1 << 30);
  EXPECT_TRUE(config.state().resident.is_auto());
  EXPECT_EQ(config.state().placement, Placement::kInterleaved);
  EXPECT_EQ(config.transfer().windows, 2);
  EXPECT_EQ(config.transfer().d2h_chunk_bytes, 64 << 20);
  EXPECT_EQ(config.checkpoint().every, 0);
  EXPECT_TRUE(config.checkpoint().at_end);
  EXPECT_EQ(config.checkpoint().keep, 2);
  EXPECT_FALSE(config.output().overwrite);
  EXPECT_FALSE(config.output().traces_any());
  EXPECT_EQ(config.eval().samples, std::nullopt);
  EXPECT_TRUE(config.table("offload").is_auto("keep_boundaries"));
}

TEST(Config, TracesACountFromTheFirstStep) {
  const Config config = with_model("output.trace_steps = 2\n");
  EXPECT_TRUE(config.output().traces(1) && config.output().traces(2) && !config.output().traces(3));
}

TEST(Config, ReportsEveryFaultOfFileAndOverridesAtOnce) {
  const std::string text =
      "steps = 5\n"
      "[model]\n"
      "path = 3\n"
      "[train]\n"
      "batch = 5\n"
      "learning_rate = nan\n"
      "[offload]\n"
      "keep_boundary = 'all'\n"
      "[lokal]\n"
      "x = 1\n"
      "[[eval]]\n"
      "[ep]\n"
      "routing_chunk = -1\n";
  EXPECT_EQ(refusal(text, {"train.eps=0", "engine.rank=2", "ofload.sub_batch=2", "nonsense", "a.b.c=1"}),
            "a.toml:1:1: steps: unknown key outside every table; near it: train.steps\n"
            "a.toml:3:8: model.path: must be a path; got 3; cure: put it in quotes\n"
            "a.toml:5:1: train.batch: unknown key; keys here: steps, global_batch, learning_rate, schedule, warmup_steps, decay_steps, "
            "min_learning_rate, weight_decay, betas, eps, clip_norm, updates, router_aux_loss, drain, decay_norms\n"
            "a.toml:6:17: train.learning_rate: must be a number (at least 0); got nan\n"
            "a.toml:8:1: offload.keep_boundary: unknown key; near it: keep_boundaries\n"
            "a.toml:9:2: lokal: unknown table; near it: local\n"
            "a.toml:11:1: eval: must be one table; got [{}]; cure: begin it with a line [eval]\n"
            "a.toml:13:17: ep.routing_chunk: must be \"auto\" or an integer (tokens, at least 1, at most 1073741824); got -1\n"
            "--set train.eps: must be a number (greater than 0); got 0\n"
            "--set engine.rank: unknown key; near it: ranks\n"
            "--set ofload.sub_batch: unknown table; near it: offload\n"
            "--set nonsense: must be table.key=value, such as train.steps=100\n"
            "--set a.b.c=1: must be table.key=value, such as train.steps=100");
}

TEST(Config, AsksForWhatIsRequired) {
  EXPECT_THAT(refusal(""), StartsWith("a.toml:1:1: model.path: missing; must be a path: "));
  EXPECT_THAT(refusal("\n[model]\nseed = 1\n"), StartsWith("a.toml:2:1: model.path: missing"));
  EXPECT_EQ(parse("", {"model.path=here"}).model().path, "here");
}

TEST(Config, NamesTheTablesThereAreForAnUnknownOne) {
  EXPECT_THAT(refusal("model.path = 'm'\n[zzzzzzzz]\n"), AllOf(HasSubstr("a.toml:2:2: zzzzzzzz: unknown table; tables here: model, data, "), HasSubstr("ep, local, offload")));
}

TEST(Config, OverridesAreTomlOrText) {
  const Config config = parse(kContract, {"model.path=other/model", "train.steps=200", "train.learning_rate=1", "data.format=\"text\"", "data.documents=joined",
                                          "budget.host=1TiB", "state.resident=all", "offload.keep_attention=[1, 2]", "output.dir=2026-01-02",
                                          "output.overwrite=true", "engine.plan=a=b#c", "train.steps=300", "engine.plugin_path=[\"p\"]"});
  EXPECT_EQ(config.model().path, "other/model");
  EXPECT_EQ(config.train().steps, 300);
  EXPECT_EQ(config.train().learning_rate, 1.0);
  EXPECT_EQ(config.data().format, DataFormat::kText);
  EXPECT_EQ(config.budget().host_bytes, int64_t{1} << 40);
  EXPECT_TRUE(config.budget().host_bytes_by_node.empty());
  EXPECT_EQ(config.state().resident.kind, LayerChoice::Kind::kAll);
  EXPECT_EQ(config.table("offload").resolve_layers("keep_attention", 4), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.output().dir, "2026-01-02");
  EXPECT_TRUE(config.output().overwrite);
  EXPECT_EQ(config.engine().plan, "a=b#c");
  EXPECT_EQ(config.where("train", "steps"), "--set train.steps");
  EXPECT_THAT(refusal(kContract, {"train.steps=1\nx=2"}), HasSubstr("--set train.steps: must be an integer"));
}

// Found by ConfigFuzz: a text that no TOML file can hold made a resolved configuration that could not be read again.
TEST(Config, OverridesAreUtf8) {
  for (const char* text : {"\xff", "a\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(refusal(kContract, {cat("output.dir=", text)}), HasSubstr("--set output.dir: must be a path"));
  }
  for (const char* text : {"\u00e9", "\u20ac", "\uffff", "\U0001f600", "\U0010ffff"}) {
    const Config config = parse(kContract, {cat("output.dir=", text)});
    EXPECT_TRUE(parse(resolved_toml(config)) == config) << text;
  }
}

TEST(Config, VariesByFurtherOverrides) {
  const Config config = parse(kContract);
  const std::vector<std::string> shorter{"train.steps=40", "engine.experts=local"};
  const Config varied = with_overrides(config, shorter);
  EXPECT_EQ(varied.train().steps, 40);
  EXPECT_EQ(varied.engine().experts, "local");
  EXPECT_EQ(varied.where("engine", "ranks"), "a.toml:25:9: engine.ranks");
  EXPECT_EQ(config.train().steps, 100);
  EXPECT_THROW(with_overrides(config, std::vector<std::string>{"train.steps=29"}), ConfigError);
}

TEST(Config, PluginsMustNotTakeTheTablesOfOthers) {
  std::vector<SettingsSchema> schemas = contract_schemas();
  schemas[0].table = "train";
  EXPECT_THROW(parse_config("model.path = 'm'", "a.toml", {}, schemas), ConfigError);
}

TEST(Config, PluginNamesAreNames) {
  EXPECT_THAT(refusal("model.path='m'\n[engine]\nexperts = '../x'"), HasSubstr("engine.experts: must be the name of a plugin"));
  EXPECT_EQ(with_model("[engine]\nexperts = 'fast_ep2'").engine().experts, "fast_ep2");
}

TEST(Config, TomlFaultsAreConfigErrorsWithTheirPlace) {
  EXPECT_THAT(refusal("[model]\npath = \n"), StartsWith("a.toml:2:8: not valid TOML: "));
  EXPECT_THROW(load_config("/nonexistent/x.toml", {}, {}), ConfigError);
  EXPECT_THROW(load_config("/tmp", {}, {}), ConfigError);
  EXPECT_THROW(peek_engine("/tmp", {}), ConfigError);
}

TEST(Config, PeeksAtTheEngineBeforePluginsAreKnown) {
  const std::string path = ::testing::TempDir() + "peek.toml";
  std::ofstream(path) << "[engine]\nplugin_path = ['a', 'b']\nexperts = 'ep'\nranks = 'x'\n[unheard_of]\nkey = 1\n";
  const Engine engine = peek_engine(path, std::vector<std::string>{"engine.activations=mine", "unheard_of.key=2"});
  EXPECT_THAT(engine.plugin_path, ElementsAre("a", "b"));
  EXPECT_EQ(engine.experts, "ep");
  EXPECT_EQ(engine.activations, "mine");
  EXPECT_EQ(engine.ranks, std::nullopt);
}

TEST(Config, ResolvesToTomlThatLoadsEqual) {
  for (const std::string& text : {std::string(kContract), std::string("model.path = 'q\"\\\\x'\n[budget]\nhost = 1234567891\ngpu = '1.5GiB'\n"),
                                  std::string("model.path = 'm'\n[train]\nlearning_rate = 0.1e-3\nbetas = [0.0, 0.9999999999999999]\n[state]\nresident = 0\n")}) {
    const Config config = parse(text);
    const std::string resolved = resolved_toml(config);
    const Config again = parse(resolved);
    EXPECT_TRUE(again == config) << resolved;
    EXPECT_EQ(resolved_toml(again), resolved);
    EXPECT_FALSE(again == parse(text, {"checkpoint.keep=3"}));
  }
  const std::string resolved = resolved_toml(parse(kContract));
  EXPECT_THAT(resolved, HasSubstr("host = [\"120GiB\", \"121GiB\"]\n"));
  EXPECT_THAT(resolved, HasSubstr("# gradients left out: as compute\n"));
  EXPECT_THAT(resolved, HasSubstr("routing_chunk = 8192\n"));
}

}  // namespace
}  // namespace oom::config
