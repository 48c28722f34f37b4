#include "base/text.h"
#include "cli/inspection.h"
#include "oom/settings.h"
#include "plugin/build_stamp.h"
#include "plugin/plugin_inspect.h"
#include "plugin/plugin_library.h"

namespace oom::cli {
namespace {

// The NAME of liboom_NAME.so; a file of another name is no plugin that the engine would find.
std::string plugin_name(const std::filesystem::path& file) {
  const std::string stem = file.stem().string();
  return stem.starts_with("liboom_") ? stem.substr(7) : stem;
}

std::string entry_words(const plugin::PluginFacts& facts) {
  if (facts.abis.empty()) return "none";
  std::string text;
  for (const uint32_t abi : facts.abis) text += cat(text.empty() ? "" : ", ", "oom_plugin_v", abi);
  return text;
}

}  // namespace

Inspection inspect_plugin(const std::filesystem::path& file) {
  const plugin::PluginFacts facts = plugin::inspect_plugin_file(file);
  Inspection found;
  found.json = {{"kind", "plugin"}, {"path", file.string()}, {"interfaces", facts.abis}, {"needed", facts.needed}, {"static_constructors", facts.static_constructors}};
  found.text = cat("plugin      ", file.string(), "\nentry       ", entry_words(facts), "\nneeds       ", base::join(facts.needed, ", "), "\n");
  if (facts.static_constructors > 0) found.text += cat("runs        ", facts.static_constructors, " static constructors before any check\n");
  try {
    const plugin::PluginLibrary& library = plugin::PluginLibrary::open(plugin_name(file), std::filesystem::absolute(file));
    const SettingsSchema* settings = library.settings_schema();
    found.json["name"] = library.name();
    found.json["plugin_kind"] = kind_name(library.kind());
    found.json["version"] = library.version();
    found.json["summary"] = library.summary();
    found.text += cat("name        ", library.name(), " ", library.version(), ", ", kind_name(library.kind()), ": ", library.summary(), "\nstamp\n");
    for (const std::string& line : plugin::stamp_lines(*library.descriptor().stamp)) {
      found.json["stamp"].push_back(line);
      found.text += cat("  ", line, "\n");
    }
    found.text += "settings    ";
    found.json["settings"] = nlohmann::ordered_json::array();
    std::string keys;
    for (size_t i = 0; settings && i < settings->settings.size(); ++i) {
      found.json["settings"].push_back(settings->settings[i].key);
      keys += cat(keys.empty() ? "" : ", ", settings->table, ".", settings->settings[i].key);
    }
    found.text += cat(keys.empty() ? "none" : keys, "\nusable      yes\n");
    found.json["usable"] = true;
  } catch (const Error& error) {
    found.json["usable"] = false;
    found.json["why_unusable"] = found.fault = error.what();
    found.text += "usable      no\n";
  }
  return found;
}

}  // namespace oom::cli
