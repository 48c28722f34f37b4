#include "config/differences.h"

#include <algorithm>

#include "config/setting_value.h"

namespace oom::config {
namespace {

std::string text_of(const std::optional<TomlValue>& value) { return value ? write_toml_value(*value) : "left out"; }

std::string before_text(const TomlValue& root, const std::string& table, const Setting& setting) {
  const TomlValue* members = root.find(table);
  const TomlValue* value = members && members->is(TomlValue::Kind::kTable) ? members->find(setting.key) : nullptr;
  return value ? write_toml_value(*value) : text_of(to_toml(setting, setting.fallback));
}

}  // namespace

std::vector<SettingDifference> differences(const Config& config, const std::string& resolved_before, std::span<const std::string_view> tables) {
  const TomlValue root = parse_toml(resolved_before, "the earlier configuration");
  std::vector<SettingDifference> found;
  for (const SettingsSchema& schema : config.schemas()) {
    if (std::find(tables.begin(), tables.end(), schema.table) == tables.end()) continue;
    for (const Setting& setting : schema.settings) {
      const std::string before = before_text(root, schema.table, setting);
      const std::string now = text_of(to_toml(setting, config.table(schema.table).get(setting.key)));
      if (before != now) found.push_back({schema.table, setting.key, before, now});
    }
  }
  return found;
}

}  // namespace oom::config
