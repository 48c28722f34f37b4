#include "oom/settings.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "config/setting_value.h"

namespace oom {
inline namespace abi_1 {
namespace {

bool is_snake_case(std::string_view name) {
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

int form_count(const Setting& setting, SettingForms forms) { return __builtin_popcount(setting.forms & forms); }

}  // namespace

void check_schema(const SettingsSchema& schema) {
  OOM_CHECK(is_snake_case(schema.table), "settings table '", schema.table, "' is not in snake_case");
  OOM_CHECK(!schema.doc.empty(), "settings table [", schema.table, "] has no documentation");
  std::set<std::string> keys;
  for (const Setting& setting : schema.settings) {
    const std::string name = schema.table + "." + setting.key;
    OOM_CHECK(is_snake_case(setting.key), name, " is not in snake_case");
    OOM_CHECK(keys.insert(setting.key).second, name, " is there twice");
    OOM_CHECK(!setting.doc.empty() && setting.doc.back() == '.', name, " needs one sentence of documentation");
    OOM_CHECK(setting.forms != 0 || !setting.words.empty(), name, " takes nothing");
    OOM_CHECK(form_count(setting, kIntegerForm | kNumberForm | kBytesForm) <= 1, name, " takes integers, numbers and sizes at once");
    OOM_CHECK(form_count(setting, kIntegerListForm | kNumberListForm | kTextListForm | kBytesListForm) <= 1, name, " takes several kinds of list");
    const auto fallback = config::to_toml(setting, setting.fallback);
    OOM_CHECK(fallback || !setting.required, name, " is required and has no example");
    OOM_CHECK(fallback || !setting.left_out.empty(), name, " has no default and does not say what leaving it out means");
    if (fallback) {
      const config::SettingReading reading = config::read_setting(setting, *fallback);
      OOM_CHECK(reading.fault.empty(), "the default of ", name, " ", reading.fault);
      OOM_CHECK(reading.value == setting.fallback, "the default of ", name, " has another type than its values");
    }
  }
}

SettingsTable::SettingsTable(const SettingsSchema& schema) : name_(schema.table), place_("defaults") {
  for (const Setting& setting : schema.settings) {
    entries_.push_back({setting.key, setting.required ? SettingValue() : setting.fallback, false, ""});
  }
}

const SettingsTable::Entry& SettingsTable::entry(std::string_view key) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.key == key; });
  OOM_CHECK(found != entries_.end(), "the table [", name_, "] has no key '", key, "'");
  return *found;
}

template <typename T>
const T& SettingsTable::value_as(std::string_view key, const char* form) const {
  const T* value = std::get_if<T>(&entry(key).value);
  OOM_CHECK(value, name_, ".", key, " is no ", form);
  return *value;
}

bool SettingsTable::is_given(std::string_view key) const { return entry(key).given; }
bool SettingsTable::has_value(std::string_view key) const { return !std::holds_alternative<std::monostate>(entry(key).value); }
bool SettingsTable::is_auto(std::string_view key) const { return !has_value(key) || is_word(key, "auto"); }
bool SettingsTable::is_word(std::string_view key, std::string_view word) const {
  const auto* text = std::get_if<std::string>(&entry(key).value);
  return text && *text == word;
}

bool SettingsTable::get_bool(std::string_view key) const { return value_as<bool>(key, "boolean"); }
int64_t SettingsTable::get_integer(std::string_view key) const { return value_as<int64_t>(key, "integer"); }
double SettingsTable::get_number(std::string_view key) const { return value_as<double>(key, "number"); }
const std::string& SettingsTable::get_text(std::string_view key) const { return value_as<std::string>(key, "text"); }
int64_t SettingsTable::get_bytes(std::string_view key) const { return value_as<int64_t>(key, "size"); }
const std::vector<int64_t>& SettingsTable::get_integers(std::string_view key) const {
  return value_as<std::vector<int64_t>>(key, "list of integers");
}
const std::vector<double>& SettingsTable::get_numbers(std::string_view key) const {
  return value_as<std::vector<double>>(key, "list of numbers");
}
const std::vector<std::string>& SettingsTable::get_texts(std::string_view key) const {
  return value_as<std::vector<std::string>>(key, "list of texts");
}
const SettingValue& SettingsTable::get(std::string_view key) const { return entry(key).value; }

std::optional<int64_t> SettingsTable::find_integer(std::string_view key) const {
  return is_auto(key) ? std::nullopt : std::optional<int64_t>(get_integer(key));
}
std::optional<std::string> SettingsTable::find_text(std::string_view key) const {
  return is_auto(key) ? std::nullopt : std::optional<std::string>(get_text(key));
}

LayerChoice SettingsTable::get_layers(std::string_view key) const {
  if (is_auto(key)) return {};
  if (is_word(key, "all")) return {.kind = LayerChoice::Kind::kAll};
  if (is_word(key, "none")) return {.kind = LayerChoice::Kind::kNone};
  if (const auto* count = std::get_if<int64_t>(&get(key))) return {.kind = LayerChoice::Kind::kCount, .count = *count};
  LayerChoice choice{.kind = LayerChoice::Kind::kList, .layers = get_integers(key)};
  std::sort(choice.layers.begin(), choice.layers.end());
  return choice;
}

std::optional<std::vector<int64_t>> SettingsTable::resolve_layers(std::string_view key, int64_t layer_count) const {
  LayerChoice choice = get_layers(key);
  if (choice.is_auto()) return std::nullopt;
  if (choice.kind == LayerChoice::Kind::kList) {
    for (const int64_t layer : choice.layers) {
      if (layer < 0 || layer >= layer_count) {
        throw ConfigError(cat(where(key), ": no such layer; got ", layer, "; the model has layers 0 to ", layer_count - 1));
      }
    }
    return choice.layers;
  }
  const int64_t count = choice.kind == LayerChoice::Kind::kAll ? layer_count : choice.count;
  if (count > layer_count) throw ConfigError(cat(where(key), ": more layers than the model has; got ", count, "; the model has ", layer_count));
  std::vector<int64_t> layers(static_cast<size_t>(count));
  std::iota(layers.begin(), layers.end(), int64_t{0});
  return layers;
}

std::string SettingsTable::where(std::string_view key) const {
  const std::string& place = entry(key).given ? entry(key).place : place_;
  return cat(place, place == "--set" ? " " : ": ", name_, ".", key);
}

std::vector<std::string> SettingsTable::keys() const {
  std::vector<std::string> keys;
  for (const Entry& each : entries_) keys.push_back(each.key);
  return keys;
}

void SettingsTable::set(std::string_view key, SettingValue value, std::string place) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.key == key; });
  OOM_CHECK(found != entries_.end(), "the table [", name_, "] has no key '", key, "'");
  *found = {found->key, std::move(value), true, std::move(place)};
}

bool SettingsTable::operator==(const SettingsTable& other) const {
  return name_ == other.name_ && std::equal(entries_.begin(), entries_.end(), other.entries_.begin(), other.entries_.end(),
                                            [](const Entry& left, const Entry& right) { return left.key == right.key && left.value == right.value; });
}

SettingsTable parse_settings(const SettingsSchema& schema, std::string_view toml, std::string_view place) {
  check_schema(schema);
  SettingsTable table(schema);
  config::Faults faults;
  try {
    config::read_settings(schema, config::parse_toml(toml, place), table, faults);
  } catch (const FileError& error) {
    throw ConfigError(error.what());
  }
  config::report_missing(schema, table, faults);
  faults.raise_if_any();
  return table;
}

SettingsTable parse_settings(const SettingsSchema& schema, const std::map<std::string, std::string>& values, std::string_view place) {
  std::string text;
  for (const auto& [key, value] : values) text += cat(key, " = ", value, "\n");
  return parse_settings(schema, text, place);
}

}  // namespace abi_1
}  // namespace oom
