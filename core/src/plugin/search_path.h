/// Where plugins are looked for, and which files are there. Touches names only: no file is opened here.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oom::plugin {

/// Sources of folders, in the order of search.
struct SearchPlaces {
  std::vector<std::string> config_entries;  ///< [engine] plugin_path, "~" not yet expanded
  std::string environment;                  ///< OOM_PLUGIN_PATH: folders separated by ':'
  std::filesystem::path program_folder;     ///< folder of the running program; empty: unknown
  std::filesystem::path core_folder;        ///< folder of liboom_core.so; empty: unknown
};

/// Returns absolute folders, each once, whether they exist or not: config entries, the environment's, PROGRAM/../lib/oom/plugins,
/// CORE/oom/plugins. "~" and "~/x" are expanded with HOME.
std::vector<std::filesystem::path> plugin_folders(const SearchPlaces& places);

/// A plugin's name is part of a file name and of the config: 1 to 64 lower-case letters, digits and underscores, a letter first.
bool valid_plugin_name(std::string_view name);
/// Returns "liboom_NAME.so".
std::string plugin_file_name(std::string_view name);

/// Files of one plugin name.
struct PluginFile {
  std::string name;
  std::filesystem::path path;                    ///< the first in the order of search: the one that counts
  std::vector<std::filesystem::path> shadowed;   ///< other files of that name further on; links to the first are left out
};

/// Lists the plugin files of `folders`, by name. Folders that are missing or unreadable count as empty.
std::vector<PluginFile> find_plugin_files(std::span<const std::filesystem::path> folders);

}  // namespace oom::plugin
