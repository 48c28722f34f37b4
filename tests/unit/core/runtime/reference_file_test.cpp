// configs/reference.toml describes the plugins that are built. OOM_WRITE_REFERENCE=1 in the environment of this test writes it anew.
#include "config/reference.h"

#include <gtest/gtest.h>

#include "config/config.h"
#include "runtime/session.h"

namespace oom::config {
namespace {

TEST(ReferenceFile, IsUpToDate) {
  runtime::PluginHost plugins({});
  const std::vector<SettingsSchema> schemas = plugins.schemas();
  ASSERT_FALSE(schemas.empty()) << "no plugin with settings in the build tree";
  EXPECT_EQ(check_reference("configs/reference.toml", schemas), "");
}

TEST(ReferenceFile, LoadsAsTheDefaults) {
  runtime::PluginHost plugins({});
  const std::vector<SettingsSchema> schemas = plugins.schemas();
  EXPECT_TRUE(load_config("configs/reference.toml", {}, schemas) == parse_config("model.path = 'models/Qwen3-30B-A3B'", "a.toml", {}, schemas));
}

}  // namespace
}  // namespace oom::config
