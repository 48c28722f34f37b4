#include "plugin/plugin_registry.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/text.h"
#include "oom/log.h"

namespace oom::plugin {
namespace fs = std::filesystem;
namespace {

std::string kind_with_article(Kind kind) {
  const std::string_view name = kind_name(kind);
  const bool vowel = name.front() == 'a' || name.front() == 'e';
  return cat(vowel ? "an " : "a ", name);
}

std::string kind_plural(Kind kind) {
  std::string name(kind_name(kind));
  if (name.back() != 'y') return name + "s";
  name.pop_back();
  return name + "ies";
}

/// The user's mistake when the config asked for it, else a fault of the files.
[[noreturn]] void raise(std::string_view where, const std::string& message) {
  if (where.empty()) throw FileError(message);
  throw ConfigError(cat(where, ": ", message));
}

}  // namespace

PluginRegistry::PluginRegistry(std::vector<fs::path> folders) : folders_(std::move(folders)) {
  for (PluginFile& file : find_plugin_files(folders_)) {
    for (const fs::path& shadowed : file.shadowed) {
      log_warn("plugin: '", file.name, "' is there twice: using ", file.path.string(), ", ignoring ", shadowed.string());
    }
    std::string name = file.name;
    entries_.emplace(std::move(name), Entry{std::move(file)});
  }
}

void PluginRegistry::judge(Entry& entry) {
  if (entry.library != nullptr || !entry.why_unusable.empty()) return;
  try {
    entry.static_constructors = inspect_plugin_file(entry.file.path).static_constructors;
    PluginLibrary& library = PluginLibrary::open(entry.file.name, entry.file.path);
    entry.schema = library.settings_schema();
    entry.library = &library;
  } catch (const Error& error) {
    entry.why_unusable = error.what();
  }
}

void PluginRegistry::judge_all() {
  for (auto& [name, entry] : entries_) judge(entry);
}

std::vector<std::string> PluginRegistry::available(Kind kind) {
  judge_all();
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.library != nullptr && entry.library->kind() == kind) names.push_back(name);
  }
  return names;
}

std::string PluginRegistry::not_found(std::string_view name, Kind kind) {
  std::vector<std::string> searched;
  for (const fs::path& folder : folders_) searched.push_back(folder.string());
  const std::vector<std::string> names = available(kind);
  return cat("plugin '", name, "' not found; looked for ", plugin_file_name(name), " in: ", searched.empty() ? "(no folder)" : base::join(searched, ", "),
             "; ", kind_plural(kind), " here: ", names.empty() ? "none" : base::join(names, ", "));
}

const PluginLibrary& PluginRegistry::load(std::string_view name, Kind kind, std::string_view where) {
  if (!valid_plugin_name(name)) {
    raise(where, cat("plugin name '", name, "' must be lower-case letters, digits and underscores, a letter first; ", kind_plural(kind),
                     " here: ", base::join(available(kind), ", ")));
  }
  const auto found = entries_.find(name);
  if (found == entries_.end()) raise(where, not_found(name, kind));
  Entry& entry = found->second;
  judge(entry);
  if (entry.library == nullptr) throw FileError(entry.why_unusable);
  const PluginLibrary& library = *entry.library;
  if (library.kind() != kind) {
    raise(where, cat("plugin '", name, "' (", library.path().string(), ") is ", kind_with_article(library.kind()), ", not ",
                     kind_with_article(kind), "; ", kind_plural(kind), " here: ", base::join(available(kind), ", ")));
  }
  log_debug("plugin: ", name, " ", library.version(), " (", kind_name(kind), ") from ", library.path().string());
  return library;
}

std::vector<PluginSettings> PluginRegistry::settings_schemas() {
  judge_all();
  std::vector<PluginSettings> schemas;
  for (const auto& [name, entry] : entries_) {
    if (entry.schema != nullptr) schemas.push_back({name, entry.library->kind(), entry.schema});
  }
  return schemas;
}

std::vector<PluginReport> PluginRegistry::report() {
  judge_all();
  std::vector<PluginReport> reports;
  for (const auto& [name, entry] : entries_) {
    PluginReport report{name, entry.file.path, std::nullopt, {}, {}, entry.static_constructors, entry.why_unusable};
    if (entry.library != nullptr) {
      report.kind = entry.library->kind();
      report.version = entry.library->version();
      report.summary = entry.library->summary();
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

HostServices engine_services() {
  HostServices services;
  services.log = [](LogLevel level, std::string_view line) {
    if (log_enabled(level)) log_line(level, line);
  };
  return services;
}

SearchPlaces process_search_places(std::vector<std::string> config_entries) {
  SearchPlaces places;
  places.config_entries = std::move(config_entries);
  if (const char* environment = std::getenv("OOM_PLUGIN_PATH")) places.environment = environment;
  std::error_code error;
  places.program_folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&process_search_places), &info) != 0 && info.dli_fname != nullptr) {
    places.core_folder = fs::absolute(info.dli_fname, error).parent_path();
  }
  return places;
}

}  // namespace oom::plugin
