#include "config/setting_value.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"

namespace oom::config {
namespace {

using Kind = TomlValue::Kind;

constexpr SettingForms kListForms = kIntegerListForm | kNumberListForm | kTextListForm | kBytesListForm;

bool takes(const Setting& setting, SettingForms forms) { return (setting.forms & forms) != 0; }
bool is_sized(const Setting& setting) { return takes(setting, kBytesForm | kBytesListForm); }

std::string bound_text(const Setting& setting, double bound) {
  return is_sized(setting) ? base::format_bytes(static_cast<int64_t>(bound)) : write_toml_value(bound == std::floor(bound) && std::fabs(bound) < 1e15 ? TomlValue(static_cast<int64_t>(bound)) : TomlValue(bound));
}

std::string range_text(const Setting& setting) {
  const SettingRange& range = setting.range;
  std::string text;
  if (range.minimum) text = cat(range.minimum_excluded ? "greater than " : "at least ", bound_text(setting, *range.minimum));
  if (range.maximum) text += cat(text.empty() ? "" : ", ", range.maximum_excluded ? "less than " : "at most ", bound_text(setting, *range.maximum));
  return text;
}

bool in_range(const SettingRange& range, double value) {
  if (range.minimum && (range.minimum_excluded ? value <= *range.minimum : value < *range.minimum)) return false;
  if (range.maximum && (range.maximum_excluded ? value >= *range.maximum : value > *range.maximum)) return false;
  return true;
}

std::string alternatives(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += cat(i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ", parts[i]);
  return text;
}

std::string list_text(const Setting& setting, const char* elements) {
  return setting.items ? cat("a list of ", *setting.items, " ", elements) : cat("a list of ", elements);
}

std::optional<int64_t> read_bytes(const TomlValue& value) {
  if (value.is(Kind::kInteger)) return value.as_integer();
  if (value.is(Kind::kText)) return base::parse_bytes(value.as_text());
  return std::nullopt;
}

/// Well-formed UTF-8, as TOML asks for: --set brings texts that no TOML reader has seen.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned lead = byte(i);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
    if (length == 0) return false;
    for (size_t j = 1; j < length; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) return false;
    }
    const unsigned second = byte(i + 1);
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool outside = (lead == 0xED && second >= 0xA0) || (lead == 0xF4 && second >= 0x90);  // surrogates, above U+10FFFF
    if (overlong || outside) return false;
    i += length;
  }
  return true;
}

bool is_plain_text(const TomlValue& value) {
  return value.is(Kind::kText) && !value.as_text().empty() && value.as_text().find('\0') == std::string::npos && is_utf8(value.as_text());
}

/// The value in the first form that fits, whatever its range.
std::optional<SettingValue> read_scalar(const Setting& setting, const TomlValue& value) {
  if (value.is(Kind::kText)) {
    for (const std::string& word : setting.words) {
      if (value.as_text() == word) return word;
    }
  }
  if (takes(setting, kBoolForm) && value.is(Kind::kBool)) return value.as_bool();
  if (takes(setting, kIntegerForm) && value.is(Kind::kInteger)) return value.as_integer();
  if (takes(setting, kNumberForm) && (value.is(Kind::kInteger) || value.is(Kind::kNumber))) return value.as_number();
  if (takes(setting, kBytesForm)) {
    if (const auto bytes = read_bytes(value)) return *bytes;
  }
  if (takes(setting, kTextForm) && is_plain_text(value)) return value.as_text();
  return std::nullopt;
}

std::optional<SettingValue> read_list(const Setting& setting, const TomlValue::Array& elements) {
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  for (const TomlValue& element : elements) {
    if (takes(setting, kIntegerListForm) && element.is(Kind::kInteger)) {
      integers.push_back(element.as_integer());
    } else if (takes(setting, kNumberListForm) && (element.is(Kind::kInteger) || element.is(Kind::kNumber))) {
      numbers.push_back(element.as_number());
    } else if (takes(setting, kTextListForm) && is_plain_text(element)) {
      texts.push_back(element.as_text());
    } else if (const auto bytes = takes(setting, kBytesListForm) ? read_bytes(element) : std::nullopt) {
      integers.push_back(*bytes);
    } else {
      return std::nullopt;
    }
  }
  if (takes(setting, kNumberListForm)) return numbers;
  if (takes(setting, kTextListForm)) return texts;
  return takes(setting, kListForms) ? std::optional<SettingValue>(integers) : std::nullopt;
}

bool values_in_range(const Setting& setting, const SettingValue& value) {
  const auto fits = [&](double number) { return std::isfinite(number) && in_range(setting.range, number); };
  if (const auto* integer = std::get_if<int64_t>(&value)) return fits(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) return fits(*number);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    return std::all_of(integers->begin(), integers->end(), [&](int64_t each) { return fits(static_cast<double>(each)); });
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return std::all_of(numbers->begin(), numbers->end(), fits);
  return true;
}

template <typename T>
std::string list_fault(const Setting& setting, const std::vector<T>& list) {
  if (setting.items && list.size() != *setting.items) return cat("must have ", *setting.items, " elements");
  if (list.empty() && !setting.may_be_empty) return "must not be empty";
  if (setting.distinct && std::set<T>(list.begin(), list.end()).size() != list.size()) return "must not name an element twice";
  return "";
}

std::string list_fault(const Setting& setting, const SettingValue& value) {
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return list_fault(setting, *integers);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return list_fault(setting, *numbers);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return list_fault(setting, *texts);
  return "";
}

/// What would make the value acceptable, as far as that can be guessed.
std::string cure(const Setting& setting, const TomlValue& value) {
  if (value.is(Kind::kText)) {
    if (takes(setting, kBoolForm | kIntegerForm | kNumberForm)) {
      const std::string& text = value.as_text();
      const bool numeric = !text.empty() && text.find_first_not_of("0123456789+-.eE_") == std::string::npos;
      if (numeric || text == "true" || text == "false") return "; cure: write it without quotes";
    }
    if (const auto near = base::nearest_name(value.as_text(), setting.words)) return "; near it: \"" + *near + "\"";
  }
  if (value.is(Kind::kNumber) && takes(setting, kIntegerForm)) {
    const double number = value.as_number();
    if (number == std::floor(number) && std::fabs(number) < 9e15) {
      return cat("; cure: write ", static_cast<int64_t>(number), ", without point or exponent");
    }
  }
  const bool scalar = !value.is(Kind::kArray) && !value.is(Kind::kTable) && !value.is(Kind::kText);
  if (scalar && takes(setting, kTextForm)) return "; cure: put it in quotes";
  if (!value.is(Kind::kArray) && !value.is(Kind::kTable) && takes(setting, kListForms) && read_list(setting, {value})) {
    return cat("; cure: write [", value.text(), "]");
  }
  return "";
}

TomlValue bytes_to_toml(int64_t bytes) {
  static constexpr std::pair<const char*, int> kUnits[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, shift] : kUnits) {
    const int64_t size = int64_t{1} << shift;
    if (bytes != 0 && bytes % size == 0) return TomlValue(cat(bytes / size, unit));
  }
  return TomlValue(bytes);
}

}  // namespace

std::string accepted_text(const Setting& setting) {
  std::vector<std::string> parts;
  for (const std::string& word : setting.words) parts.push_back("\"" + word + "\"");
  if (takes(setting, kBoolForm)) parts.push_back("true or false");
  if (takes(setting, kIntegerForm)) parts.push_back("an integer");
  if (takes(setting, kNumberForm)) parts.push_back("a number");
  if (takes(setting, kBytesForm)) parts.push_back("a size such as \"64MiB\"");
  if (takes(setting, kTextForm)) parts.push_back(setting.text_form.empty() ? "text" : setting.text_form);
  if (takes(setting, kIntegerListForm)) parts.push_back(list_text(setting, "integers"));
  if (takes(setting, kNumberListForm)) parts.push_back(list_text(setting, "numbers"));
  if (takes(setting, kTextListForm)) parts.push_back(list_text(setting, "texts"));
  if (takes(setting, kBytesListForm)) parts.push_back(list_text(setting, "sizes"));
  const std::string range = range_text(setting);
  std::string text = alternatives(parts);
  if (!setting.unit.empty() || !range.empty()) {
    text += cat(" (", setting.unit, setting.unit.empty() || range.empty() ? "" : ", ", range, ")");
  }
  return text;
}

SettingReading read_setting(const Setting& setting, const TomlValue& value) {
  const auto fault = [&](const std::string& what) { return SettingReading{{}, cat(what, "; got ", value.text(), cure(setting, value))}; };
  const auto read = value.is(Kind::kArray) ? read_list(setting, value.as_array()) : read_scalar(setting, value);
  if (!read || !values_in_range(setting, *read)) return fault("must be " + accepted_text(setting));
  if (const std::string what = list_fault(setting, *read); !what.empty()) return fault(what);
  if (setting.check) {
    if (const std::string what = setting.check(*read); !what.empty()) return fault(what);
  }
  return {*read, ""};
}

std::optional<TomlValue> to_toml(const Setting& setting, const SettingValue& value) {
  if (const auto* boolean = std::get_if<bool>(&value)) return TomlValue(*boolean);
  if (const auto* integer = std::get_if<int64_t>(&value)) return is_sized(setting) ? bytes_to_toml(*integer) : TomlValue(*integer);
  if (const auto* number = std::get_if<double>(&value)) return TomlValue(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return TomlValue(*text);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return TomlValue(*numbers);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return TomlValue(*texts);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    TomlValue::Array elements;
    for (const int64_t each : *integers) elements.push_back(is_sized(setting) ? bytes_to_toml(each) : TomlValue(each));
    return TomlValue(std::move(elements));
  }
  return std::nullopt;
}

void read_one_setting(const SettingsSchema& schema, std::string_view key, const TomlValue& value, const std::string& place,
                      SettingsTable& table, Faults& faults) {
  const bool from_file = value.position().file && place != "--set";
  const std::string name = cat(schema.table, ".", key);
  const Setting* setting = schema.find(key);
  if (!setting) {
    const std::vector<std::string> keys = table.keys();
    const auto near = base::nearest_name(key, keys);
    faults.add(place, from_file ? ": " : " ", name, ": unknown key; ", near ? "near it: " + *near : "keys here: " + base::join(keys, ", "));
    return;
  }
  const std::string value_place = from_file ? value.position().text() : place;
  SettingReading reading = read_setting(*setting, value);
  if (!reading.fault.empty()) {
    faults.add(value_place, from_file ? ": " : " ", name, ": ", reading.fault);
    faults.mark(name);
  } else {
    table.set(key, std::move(reading.value), value_place);
  }
}

void read_settings(const SettingsSchema& schema, const TomlValue& source, SettingsTable& table, Faults& faults) {
  table.set_place(source.position().text());
  for (const TomlValue::Member& member : source.as_table()) {
    read_one_setting(schema, member.key, member.value, member.position.text(), table, faults);
  }
}

void report_missing(const SettingsSchema& schema, const SettingsTable& table, Faults& faults) {
  for (const Setting& setting : schema.settings) {
    if (!setting.required || table.is_given(setting.key) || faults.is_marked(schema.table + "." + setting.key)) continue;
    faults.add(table.where(setting.key), ": missing; must be ", accepted_text(setting), ": ", setting.doc);
  }
}

}  // namespace oom::config
