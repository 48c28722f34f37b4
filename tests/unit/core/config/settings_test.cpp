#include "oom/settings.h"

#include <gmock/gmock.h>

#include "contract_schemas.h"

namespace oom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SettingsSchema schema_of(Setting setting) {
  setting.key = "key";
  setting.doc = "A setting.";
  return {.table = "plugin", .doc = "A plugin.", .settings = {std::move(setting)}};
}
SettingsTable read(const Setting& setting, const std::string& toml) { return parse_settings(schema_of(setting), "key = " + toml); }
std::string refusal(const Setting& setting, const std::string& toml) {
  try {
    read(setting, toml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(nothing)";
}

const Setting kTokens{.forms = kIntegerForm, .words = {"auto"}, .unit = "tokens", .range = at_least(1), .fallback = "auto"};
const Setting kSize{.forms = kBytesForm | kBytesListForm, .range = between(1, 1e15), .left_out = "all there is"};
const Setting kLayers{.forms = kIntegerForm | kIntegerListForm, .words = {"auto", "all", "none"}, .range = at_least(0), .fallback = "auto", .distinct = true, .may_be_empty = true};

TEST(Settings, TellDefaultsFromWhatIsGiven) {
  const SettingsTable defaults(schema_of(kTokens));
  EXPECT_TRUE(defaults.is_auto("key"));
  EXPECT_FALSE(defaults.is_given("key"));
  const SettingsTable given = read(kTokens, "\"auto\"");
  EXPECT_TRUE(given.is_auto("key"));
  EXPECT_TRUE(given.is_given("key"));
  EXPECT_EQ(given.where("key"), "settings:1:7: plugin.key");
  EXPECT_EQ(defaults, given);
  EXPECT_EQ(read(kTokens, "512").find_integer("key"), 512);
  EXPECT_EQ(defaults.find_integer("key"), std::nullopt);
  const SettingsTable left_out(schema_of(kSize));
  EXPECT_TRUE(left_out.is_auto("key"));
  EXPECT_FALSE(left_out.has_value("key"));
}

TEST(Settings, ReadSizes) {
  EXPECT_EQ(read(kSize, "\"64MiB\"").get_bytes("key"), 64 << 20);
  EXPECT_EQ(read(kSize, "4096").get_bytes("key"), 4096);
  EXPECT_THAT(read(kSize, "[\"1GiB\", 5]").get_integers("key"), ElementsAre(1 << 30, 5));
  EXPECT_EQ(refusal(kSize, "\"80 parsecs\""),
            "settings:1:7: plugin.key: must be a size such as \"64MiB\" or a list of sizes (at least 1 B, at most 909 TiB); got \"80 parsecs\"");
  EXPECT_THAT(refusal(kSize, "[]"), HasSubstr("must not be empty; got []"));
  EXPECT_THAT(refusal(kSize, "-1"), HasSubstr("got -1"));
  EXPECT_THAT(refusal(kSize, "1.5"), HasSubstr("got 1.5"));
}

TEST(Settings, ReadLayers) {
  EXPECT_EQ(read(kLayers, "\"all\"").resolve_layers("key", 3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(read(kLayers, "\"none\"").resolve_layers("key", 3), (std::vector<int64_t>{}));
  EXPECT_EQ(read(kLayers, "[]").resolve_layers("key", 3), (std::vector<int64_t>{}));
  EXPECT_EQ(read(kLayers, "2").resolve_layers("key", 3), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(read(kLayers, "[2, 0]").resolve_layers("key", 3), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(read(kLayers, "\"auto\"").resolve_layers("key", 3), std::nullopt);
  EXPECT_EQ(read(kLayers, "2").get_layers("key"), (LayerChoice{.kind = LayerChoice::Kind::kCount, .count = 2}));
  EXPECT_THROW(read(kLayers, "4").resolve_layers("key", 3), ConfigError);
  EXPECT_THROW(read(kLayers, "[3]").resolve_layers("key", 3), ConfigError);
  EXPECT_THAT(refusal(kLayers, "[1, 1]"), HasSubstr("must not name an element twice; got [1, 1]"));
  EXPECT_THAT(refusal(kLayers, "[-1]"), HasSubstr("at least 0"));
  EXPECT_THAT(refusal(kLayers, "[1, \"x\"]"), HasSubstr("got [1, \"x\"]"));
}

TEST(Settings, MessagesSayWhatIsTakenAndTheCure) {
  EXPECT_EQ(refusal(kTokens, "-1"), "settings:1:7: plugin.key: must be \"auto\" or an integer (tokens, at least 1); got -1");
  EXPECT_THAT(refusal(kTokens, "\"512\""), HasSubstr("got \"512\"; cure: write it without quotes"));
  EXPECT_THAT(refusal(kTokens, "1e3"), HasSubstr("got 1000.0; cure: write 1000, without point or exponent"));
  EXPECT_THAT(refusal(kTokens, "\"atuo\""), HasSubstr("got \"atuo\"; near it: \"auto\""));
  const Setting number{.forms = kNumberForm, .range = {.minimum = 0, .maximum = 1, .maximum_excluded = true}, .fallback = 0.5};
  EXPECT_EQ(read(number, "0").get_number("key"), 0.0);
  EXPECT_THAT(refusal(number, "1"), HasSubstr("must be a number (at least 0, less than 1); got 1"));
  EXPECT_THAT(refusal(number, "nan"), HasSubstr("got nan"));
  EXPECT_THAT(refusal(number, "-inf"), HasSubstr("got -inf"));
  const Setting text{.forms = kTextForm, .fallback = "x"};
  EXPECT_THAT(refusal(text, "5"), HasSubstr("must be text; got 5; cure: put it in quotes"));
  EXPECT_THAT(refusal(text, "\"\""), HasSubstr("must be text; got \"\""));
  EXPECT_THAT(refusal(text, "\"a\\u0000b\""), HasSubstr("must be text"));
  const Setting texts{.forms = kTextListForm, .fallback = std::vector<std::string>{"a"}};
  EXPECT_THAT(refusal(texts, "\"b\""), HasSubstr("cure: write [\"b\"]"));
  const Setting pair{.forms = kNumberListForm, .fallback = std::vector<double>{0, 1}, .items = 2};
  EXPECT_THAT(refusal(pair, "[0.5]"), HasSubstr("must have 2 elements; got [0.5]"));
}

TEST(Settings, ReportEveryFault) {
  const auto schemas = config::contract_schemas();
  try {
    parse_settings(schemas[2], "keep_boundary = 'all'\nkeep_boundaries = '0+1'\nsub_batch = 0\n", "o.toml");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "o.toml:1:1: offload.keep_boundary: unknown key; near it: keep_boundaries\n"
                 "o.toml:2:19: offload.keep_boundaries: must be \"auto\", \"all\", \"n+1\" with n from 1 up, or a list of layers; got \"0+1\"\n"
                 "o.toml:3:13: offload.sub_batch: must be \"auto\" or an integer (sequences, at least 1, at most 1073741824); got 0");
  }
  EXPECT_EQ(parse_settings(schemas[2], "keep_boundaries = '3+1'").get_text("keep_boundaries"), "3+1");
}

TEST(Settings, GettersRefuseOtherFormsAndKeys) {
  const SettingsTable table = read(kTokens, "\"auto\"");
  EXPECT_THROW(table.get_integer("key"), Error);
  EXPECT_THROW(table.get_text("other"), Error);
}

TEST(Schema, IsChecked) {
  for (const SettingsSchema& schema : config::contract_schemas()) EXPECT_NO_THROW(check_schema(schema));
  Setting bad = kTokens;
  bad.fallback = int64_t{0};
  EXPECT_THROW(check_schema(schema_of(bad)), Error);
  bad.fallback = {};
  EXPECT_THROW(check_schema(schema_of(bad)), Error);  // no default, and nothing says what that means
  bad.fallback = "auto";
  EXPECT_NO_THROW(check_schema(schema_of(bad)));
  bad.forms |= kBytesForm;
  EXPECT_THROW(check_schema(schema_of(bad)), Error);
  SettingsSchema twice = schema_of(kTokens);
  twice.settings.push_back(twice.settings[0]);
  EXPECT_THROW(check_schema(twice), Error);
  SettingsSchema named = schema_of(kTokens);
  named.table = "My Table";
  EXPECT_THROW(check_schema(named), Error);
  const Setting mistyped{.forms = kNumberForm, .fallback = int64_t{1}};
  EXPECT_THROW(check_schema(schema_of(mistyped)), Error);
}

}  // namespace
}  // namespace oom
