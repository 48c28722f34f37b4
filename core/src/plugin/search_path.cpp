#include "plugin/search_path.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/file.h"

namespace oom::plugin {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "liboom_";
constexpr std::string_view kSuffix = ".so";

/// Resolves links and ".." where the folder exists, so that one folder reached by two ways is searched once.
fs::path canonical_folder(const fs::path& folder) {
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(folder, error), error);
  return error ? folder.lexically_normal() : resolved;
}

std::string_view name_in_file_name(std::string_view file_name) {
  if (file_name.size() <= kPrefix.size() + kSuffix.size() || !file_name.starts_with(kPrefix) || !file_name.ends_with(kSuffix)) return {};
  return file_name.substr(kPrefix.size(), file_name.size() - kPrefix.size() - kSuffix.size());
}

}  // namespace

std::vector<fs::path> plugin_folders(const SearchPlaces& places) {
  std::vector<fs::path> folders;
  const auto add = [&folders](const fs::path& folder) {
    fs::path resolved = canonical_folder(folder);
    if (!resolved.has_filename()) resolved = resolved.parent_path();
    if (std::find(folders.begin(), folders.end(), resolved) == folders.end()) folders.push_back(std::move(resolved));
  };
  for (const std::string& entry : places.config_entries) {
    if (!entry.empty()) add(base::expand_home(entry));
  }
  for (size_t begin = 0; begin < places.environment.size();) {
    const size_t end = std::min(places.environment.find(':', begin), places.environment.size());
    if (end > begin) add(base::expand_home(std::string_view(places.environment).substr(begin, end - begin)));
    begin = end + 1;
  }
  if (!places.program_folder.empty()) add(places.program_folder / ".." / "lib" / "oom" / "plugins");
  if (!places.core_folder.empty()) add(places.core_folder / "oom" / "plugins");
  return folders;
}

bool valid_plugin_name(std::string_view name) {
  if (name.empty() || name.size() > 64 || name[0] < 'a' || name[0] > 'z') return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::string plugin_file_name(std::string_view name) {
  std::string file_name(kPrefix);
  file_name.append(name).append(kSuffix);
  return file_name;
}

std::vector<PluginFile> find_plugin_files(std::span<const fs::path> folders) {
  std::map<std::string, PluginFile, std::less<>> by_name;
  for (const fs::path& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const std::string file_name = at->path().filename().string();
      const std::string_view name = name_in_file_name(file_name);
      // The core library may lie in a folder that is searched; its name is taken.
      if (!valid_plugin_name(name) || name == "core") continue;
      auto [known, added] = by_name.try_emplace(std::string(name), PluginFile{std::string(name), at->path(), {}});
      std::error_code ignored;
      if (!added && !fs::equivalent(known->second.path, at->path(), ignored)) known->second.shadowed.push_back(at->path());
    }
  }
  std::vector<PluginFile> files;
  files.reserve(by_name.size());
  for (auto& [name, file] : by_name) files.push_back(std::move(file));
  return files;
}

}  // namespace oom::plugin
