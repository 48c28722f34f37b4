#include "config/reference.h"

#include <gmock/gmock.h>

#include "config/config.h"
#include "contract_schemas.h"

namespace oom::config {
namespace {

// The file in the repository describes the plugins that are built: tests/unit/core/runtime/reference_file_test.cpp compares it.
TEST(Reference, SaysWhatDiffers) {
  EXPECT_THAT(check_reference("configs/reference.toml", {}), ::testing::HasSubstr("out of date"));
  EXPECT_THAT(check_reference("configs/no_such_file.toml", {}), ::testing::HasSubstr("configs/no_such_file.toml:1: out of date; got '(end)'"));
}

TEST(Reference, LoadsAsTheDefaults) {
  const auto schemas = contract_schemas();
  const Config config = parse_config(reference_toml(schemas), "reference.toml", {}, schemas);
  EXPECT_TRUE(config == parse_config("model.path = 'models/Qwen3-30B-A3B'", "a.toml", {}, schemas));
}

TEST(Reference, NamesEveryKey) {
  const std::string text = reference_toml(contract_schemas());
  for (const SettingsSchema& schema : core_schemas()) {
    EXPECT_NO_THROW(check_schema(schema));
    for (const Setting& setting : schema.settings) {
      EXPECT_THAT(text, ::testing::ContainsRegex("\n(# )?" + setting.key + " =")) << schema.table;
    }
  }
}

}  // namespace
}  // namespace oom::config
