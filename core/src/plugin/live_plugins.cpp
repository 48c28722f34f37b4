#include "plugin/live_plugins.h"

namespace oom::plugin {

// A vector destroys its elements front to back.
LivePlugins::~LivePlugins() {
  while (!live_.empty()) live_.pop_back();
}

Plugin& LivePlugins::make_any(const PluginLibrary& library, const HostServices& services) {
  auto own = std::make_unique<const HostServices>(services);
  PluginInstance instance = library.create(*own);
  return *live_.emplace_back(Live{std::move(own), std::move(instance)}).instance;
}

}  // namespace oom::plugin
