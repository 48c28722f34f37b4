#include "config/reference.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "config/config.h"
#include "config/setting_value.h"

namespace oom::config {
namespace {

constexpr size_t kCommentColumns = 118;

/// Appends `text` as comment lines, broken at spaces.
void append_comment(std::string& out, const std::string& text) {
  std::istringstream words(text);
  std::string line = "#";
  for (std::string next; words >> next;) {
    if (line.size() + 1 + next.size() > kCommentColumns) {
      out += line + "\n";
      line.assign(1, '#');
    }
    line += " " + next;
  }
  out += line + "\n";
}

void append_setting(std::string& out, const Setting& setting) {
  const auto value = to_toml(setting, setting.fallback);
  const std::string ending = setting.required ? "Required." : value ? cat("Default: ", write_toml_value(*value), ".") : cat("Left out: ", setting.left_out, ".");
  append_comment(out, setting.doc);
  append_comment(out, cat("Takes ", accepted_text(setting), ". ", ending));
  out += cat(value ? "" : "# ", setting.key, " =", value ? cat(" ", write_toml_value(*value)) : std::string(), "\n");
}

void append_table(std::string& out, const SettingsSchema& schema) {
  out += "\n";
  append_comment(out, schema.doc);
  out += "[" + schema.table + "]\n";
  for (const Setting& setting : schema.settings) append_setting(out, setting);
}

std::string line_of(std::istringstream& lines) {
  std::string line;
  return std::getline(lines, line) ? line : "(end)";
}

}  // namespace

std::string reference_toml(std::span<const SettingsSchema> plugin_schemas) {
  std::string out;
  append_comment(out, "Every key of a configuration. Made from the schemas: change those, not this file.");
  append_comment(out, "Keys in comments may be left out and have no default. Sizes are integers of bytes or texts such as \"64MiB\".");
  for (const SettingsSchema& schema : core_schemas()) append_table(out, schema);
  for (const SettingsSchema& schema : plugin_schemas) append_table(out, schema);
  return out;
}

std::string resolved_toml(const Config& config) {
  std::string out;
  for (const SettingsSchema& schema : config.schemas()) {
    const SettingsTable& table = config.table(schema.table);
    out += cat(out.empty() ? "" : "\n", "[", schema.table, "]\n");
    for (const Setting& setting : schema.settings) {
      const auto value = to_toml(setting, table.get(setting.key));
      out += value ? cat(setting.key, " = ", write_toml_value(*value), "\n") : cat("# ", setting.key, " left out: ", setting.left_out, "\n");
    }
  }
  return out;
}

std::string check_reference(const std::string& path, std::span<const SettingsSchema> plugin_schemas) {
  const std::string wanted = reference_toml(plugin_schemas);
  if (std::getenv("OOM_WRITE_REFERENCE")) std::ofstream(path) << wanted;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  if (text.str() == wanted) return "";
  std::istringstream found_lines(text.str());
  std::istringstream wanted_lines(wanted);
  for (int line = 1;; ++line) {
    const std::string found_line = line_of(found_lines);
    const std::string wanted_line = line_of(wanted_lines);
    if (found_line != wanted_line || found_line == "(end)") {
      return cat(path, ":", line, ": out of date; got '", found_line, "', the schemas say '", wanted_line, "'; cure: run this again with OOM_WRITE_REFERENCE=1");
    }
  }
}

}  // namespace oom::config
