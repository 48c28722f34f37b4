// oom_open_plugin FOLDER: loads every plugin of a folder, makes an instance of each with the defaults of its table, and says what they are.
// Exit 1 when one cannot be used, or none is there.
#include <iostream>

#include "oom/settings.h"
#include "plugin/live_plugins.h"
#include "plugin/plugin_registry.h"

int main(int count, char** words) {
  if (count != 2) return 2;
  try {
    oom::plugin::PluginRegistry registry({words[1]});
    oom::plugin::LivePlugins live;
    int usable = 0;
    for (const oom::plugin::PluginReport& report : registry.report()) {
      if (!report.why_unusable.empty()) throw oom::FileError(report.why_unusable);
      const oom::plugin::PluginLibrary& library = registry.load(report.name, *report.kind);
      const oom::SettingsSchema* schema = library.settings_schema();
      const oom::SettingsTable settings = schema != nullptr ? oom::SettingsTable(*schema) : oom::SettingsTable();
      oom::HostServices services = oom::plugin::engine_services();
      services.settings = schema != nullptr ? &settings : nullptr;
      library.create(services);
      std::cout << report.name << ' ' << report.version << ": " << report.summary << '\n';
      ++usable;
    }
    if (usable == 0) throw oom::FileError(oom::cat("no plugin in ", words[1]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
