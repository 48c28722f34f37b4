#include <algorithm>

#include "base/text.h"
#include "config/config.h"
#include "config/faults.h"
#include "config/setting_value.h"
#include "config/validate.h"

namespace oom::config {
namespace {

constexpr const char* kOverridePlace = "--set";

using Tables = std::map<std::string, SettingsTable>;

const SettingsSchema* find_schema(std::span<const SettingsSchema> schemas, std::string_view table) {
  const auto found = std::find_if(schemas.begin(), schemas.end(), [&](const SettingsSchema& schema) { return schema.table == table; });
  return found == schemas.end() ? nullptr : &*found;
}

std::vector<SettingsSchema> all_schemas(std::span<const SettingsSchema> plugin_schemas) {
  std::vector<SettingsSchema> schemas = core_schemas();
  for (const SettingsSchema& schema : plugin_schemas) {
    check_schema(schema);
    if (find_schema(schemas, schema.table)) {
      throw ConfigError(cat("two owners of the table [", schema.table, "]; cure: rename the plugin '", schema.table, "'"));
    }
    schemas.push_back(schema);
  }
  return schemas;
}

Tables default_tables(std::span<const SettingsSchema> schemas, const std::string& file) {
  Tables tables;
  for (const SettingsSchema& schema : schemas) {
    tables.emplace(schema.table, SettingsTable(schema)).first->second.set_place(file + ":1:1");
  }
  return tables;
}

std::string unknown_table(std::span<const SettingsSchema> schemas, std::string_view name) {
  std::vector<std::string> names;
  for (const SettingsSchema& schema : schemas) names.push_back(schema.table);
  const auto near = base::nearest_name(name, names);
  return cat("unknown table; ", near ? "near it: " + *near : "tables here: " + base::join(names, ", ") + "; a plugin's table needs the plugin on engine.plugin_path");
}

void read_member(std::span<const SettingsSchema> schemas, const TomlValue::Member& member, Tables& tables, Faults& faults) {
  const SettingsSchema* schema = find_schema(schemas, member.key);
  if (schema && member.value.is(TomlValue::Kind::kTable)) {
    read_settings(*schema, member.value, tables.at(member.key), faults);
  } else if (schema) {
    faults.add(member.value.position().text(), ": ", member.key, ": must be one table; got ", member.value.text(), "; cure: begin it with a line [", member.key, "]");
  } else if (member.value.is(TomlValue::Kind::kTable)) {
    faults.add(member.position.text(), ": ", member.key, ": ", unknown_table(schemas, member.key));
  } else {
    const auto owner = std::find_if(schemas.begin(), schemas.end(), [&](const SettingsSchema& each) { return each.find(member.key); });
    faults.add(member.position.text(), ": ", member.key, ": unknown key outside every table",
               owner == schemas.end() ? "" : cat("; near it: ", owner->table, ".", member.key));
  }
}

/// The value as TOML; text when it is none, or more than one value.
TomlValue override_value(const std::string& text) {
  try {
    const TomlValue root = parse_toml("value = " + text, kOverridePlace);
    if (root.as_table().size() == 1) {
      TomlValue value = root.get("value");
      value.set_position({});
      return value;
    }
  } catch (const FileError&) {
  }
  return TomlValue(text);
}

void apply_override(std::span<const SettingsSchema> schemas, const std::string& text, Tables& tables, Faults& faults) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const size_t dot = name.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 == name.size() || name.find('.', dot + 1) != std::string::npos) {
    faults.add(kOverridePlace, " ", text, ": must be table.key=value, such as train.steps=100");
    return;
  }
  const std::string table = name.substr(0, dot);
  if (const SettingsSchema* schema = find_schema(schemas, table)) {
    read_one_setting(*schema, name.substr(dot + 1), override_value(text.substr(equals + 1)), kOverridePlace, tables.at(table), faults);
  } else {
    faults.add(kOverridePlace, " ", name, ": ", unknown_table(schemas, table));
  }
}

TomlValue parse_or_config_error(const std::string& path) {
  try {
    return parse_toml_file(path);
  } catch (const FileError& error) {
    throw ConfigError(error.what());
  }
}

Config build(const std::string& name, std::vector<SettingsSchema> schemas, Tables tables, std::span<const std::string> overrides, Faults faults) {
  for (const std::string& text : overrides) apply_override(schemas, text, tables, faults);
  for (const SettingsSchema& schema : schemas) report_missing(schema, tables.at(schema.table), faults);
  faults.raise_if_any();
  Config config(name, std::move(schemas), std::move(tables));
  check_rules(config, faults);
  faults.raise_if_any();
  return config;
}

Config build_from(const TomlValue& root, const std::string& name, std::span<const std::string> overrides, std::span<const SettingsSchema> plugin_schemas) {
  std::vector<SettingsSchema> schemas = all_schemas(plugin_schemas);
  Tables tables = default_tables(schemas, name);
  Faults faults;
  for (const TomlValue::Member& member : root.as_table()) read_member(schemas, member, tables, faults);
  return build(name, std::move(schemas), std::move(tables), overrides, faults);
}

}  // namespace

Config load_config(const std::string& path, std::span<const std::string> overrides, std::span<const SettingsSchema> plugin_schemas) {
  return build_from(parse_or_config_error(path), path, overrides, plugin_schemas);
}

Config parse_config(std::string_view text, const std::string& name, std::span<const std::string> overrides,
                    std::span<const SettingsSchema> plugin_schemas) {
  TomlValue root;
  try {
    root = parse_toml(text, name);
  } catch (const FileError& error) {
    throw ConfigError(error.what());
  }
  return build_from(root, name, overrides, plugin_schemas);
}

Config with_overrides(const Config& config, std::span<const std::string> overrides) {
  Tables tables;
  for (const SettingsSchema& schema : config.schemas()) tables.emplace(schema.table, config.table(schema.table));
  return build(config.path(), config.schemas(), std::move(tables), overrides, {});
}

Engine peek_engine(const std::string& path, std::span<const std::string> overrides) {
  const TomlValue root = parse_or_config_error(path);
  const SettingsSchema& schema = *find_schema(core_schemas(), "engine");
  const std::span<const SettingsSchema> engine_alone(&schema, 1);
  Tables tables = default_tables(engine_alone, path);
  Faults left_to_load_config;
  for (const TomlValue::Member& member : root.as_table()) read_member(engine_alone, member, tables, left_to_load_config);
  for (const std::string& text : overrides) apply_override(engine_alone, text, tables, left_to_load_config);
  return read_engine(tables.at("engine"));
}

}  // namespace oom::config
