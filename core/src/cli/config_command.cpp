#include <iostream>

#include "cli/command_line.h"
#include "runtime/session.h"

namespace oom::cli {

int run_config(const CommandLine& line) {
  const std::vector<std::string>& overrides = line.overrides;
  const config::Engine engine = config::peek_engine(line.path, overrides);
  runtime::PluginHost plugins(engine.plugin_path);
  const std::vector<SettingsSchema> schemas = plugins.schemas();
  std::cout << config::resolved_toml(config::load_config(line.path, overrides, schemas));
  return 0;
}

}  // namespace oom::cli
