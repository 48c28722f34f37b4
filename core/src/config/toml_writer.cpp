#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "config/toml_values.h"
#include "oom/error.h"

namespace oom::config {
namespace {

using Kind = TomlValue::Kind;

constexpr size_t kLineLimit = 120;

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04X", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  std::string text(buffer.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // a float, not an integer, to TOML
  return text;
}

void append_value(std::string& out, const TomlValue& value) {
  switch (value.kind()) {
    case Kind::kBool: out += value.as_bool() ? "true" : "false"; return;
    case Kind::kInteger: out += std::to_string(value.as_integer()); return;
    case Kind::kNumber: out += number_text(value.as_number()); return;
    case Kind::kText: out += in_quotes(value.as_text()); return;
    case Kind::kArray: {
      const char* separator = "";
      out += "[";
      for (const TomlValue& element : value.as_array()) {
        out += separator;
        append_value(out, element);
        separator = ", ";
      }
      out += "]";
      return;
    }
    case Kind::kTable: {
      const char* separator = "";
      out += "{";
      for (const TomlValue::Member& member : value.as_table()) {
        out += cat(separator, write_toml_key(member.key), " = ");
        append_value(out, member.value);
        separator = ", ";
      }
      out += "}";
      return;
    }
  }
}

bool is_table_array(const TomlValue& value) {
  if (!value.is(Kind::kArray) || value.as_array().empty()) return false;
  const TomlValue::Array& elements = value.as_array();
  return std::all_of(elements.begin(), elements.end(), [](const TomlValue& element) { return element.is(Kind::kTable); });
}

void append_member(std::string& out, const std::string& key, const TomlValue& value) {
  const std::string head = write_toml_key(key) + " = ";
  const std::string line = head + write_toml_value(value);
  if (line.size() <= kLineLimit || !value.is(Kind::kArray)) {
    out += line + "\n";
    return;
  }
  out += head + "[\n";
  std::string row = " ";
  for (const TomlValue& element : value.as_array()) {
    const std::string text = write_toml_value(element);
    if (row.size() > 1 && row.size() + text.size() + 2 > kLineLimit) {
      out += row + "\n";
      row = " ";
    }
    row += " " + text + ",";
  }
  out += row + "\n]\n";
}

void append_table(std::string& out, const TomlValue& table, const std::string& path) {
  for (const TomlValue::Member& member : table.as_table()) {
    if (!member.value.is(Kind::kTable) && !is_table_array(member.value)) append_member(out, member.key, member.value);
  }
  for (const TomlValue::Member& member : table.as_table()) {
    const std::string inner = path.empty() ? write_toml_key(member.key) : path + "." + write_toml_key(member.key);
    if (member.value.is(Kind::kTable)) {
      out += cat(out.empty() ? "" : "\n", "[", inner, "]\n");
      append_table(out, member.value, inner);
    } else if (is_table_array(member.value)) {
      for (const TomlValue& element : member.value.as_array()) {
        out += cat(out.empty() ? "" : "\n", "[[", inner, "]]\n");
        append_table(out, element, inner);
      }
    }
  }
}

}  // namespace

std::string write_toml_key(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return bare ? std::string(key) : in_quotes(key);
}

std::string write_toml_value(const TomlValue& value) {
  std::string out;
  append_value(out, value);
  return out;
}

std::string write_toml(const TomlValue& root) {
  std::string out;
  append_table(out, root, "");
  return out;
}

}  // namespace oom::config
