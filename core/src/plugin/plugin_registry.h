/// The plugins of a run: found in folders, judged, loaded on demand, listed for people.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/plugin_library.h"
#include "plugin/search_path.h"

namespace oom::plugin {

/// One plugin file, for oom doctor and oom inspect.
struct PluginReport {
  std::string name;
  std::filesystem::path path;
  std::optional<Kind> kind;  ///< nothing when the file never got as far as telling
  std::string version;
  std::string summary;
  uint32_t static_constructors = 0;
  std::string why_unusable;  ///< empty: usable
};

/// The table of one plugin in the config: [name].
struct PluginSettings {
  std::string plugin;
  Kind kind;
  const SettingsSchema* schema;  ///< owned by the plugin's library, valid as long as the process
};

/// Looks at the folders once, when made; warns of second files of a name. Used by one thread, before ranks start.
class PluginRegistry {
 public:
  explicit PluginRegistry(std::vector<std::filesystem::path> folders);

  const std::vector<std::filesystem::path>& folders() const { return folders_; }

  /// Returns the names of the usable plugins of `kind`, sorted. Loads every file that passes inspection.
  std::vector<std::string> available(Kind kind);

  /// Returns plugin `name`, checked to be of `kind`. `where` says which configuration asked for it ("configs/a.toml:9:14: engine.experts"):
  /// then a name that is unknown, or of another kind, is a ConfigError that begins with it; without one it is a FileError.
  /// A file that is there but cannot be used is a FileError either way.
  const PluginLibrary& load(std::string_view name, Kind kind, std::string_view where = {});

  /// Returns the settings tables of all usable plugins, in use or not, by name.
  std::vector<PluginSettings> settings_schemas();

  /// Returns every plugin file found, by name, usable or with the reason why not.
  std::vector<PluginReport> report();

 private:
  struct Entry {
    PluginFile file;
    PluginLibrary* library = nullptr;
    const SettingsSchema* schema = nullptr;
    std::string why_unusable;
    uint32_t static_constructors = 0;
  };
  void judge(Entry& entry);
  void judge_all();
  std::string not_found(std::string_view name, Kind kind);

  const std::vector<std::filesystem::path> folders_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Returns host services with the engine's log; the caller fills in the rest.
HostServices engine_services();

/// Returns the search places of this process: OOM_PLUGIN_PATH, the running program's folder and the core library's, with the config's entries.
SearchPlaces process_search_places(std::vector<std::string> config_entries);

}  // namespace oom::plugin
