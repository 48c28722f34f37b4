#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "config/toml_values.h"
#include "oom/error.h"

namespace oom::config {
/// An assumption of the TOML library that the input broke.
struct TomlAssumption {};
[[noreturn]] static void raise_toml_assumption() { throw TomlAssumption(); }
}  // namespace oom::config

// Set before the only inclusion. Recursion in the parser stays within a small stack. Version 3.3 asserts what damaged input breaks
// (a table header that begins with '='): that must neither abort nor, in release builds, be passed over.
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : ::oom::config::raise_toml_assumption())
#define TOML_HEADER_ONLY 1
#define TOML_MAX_NESTED_VALUES 64
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace oom::config {
namespace {

constexpr int64_t kFileLimitBytes = int64_t{16} << 20;
constexpr int kKeyPartLimit = 16;

using FileName = std::shared_ptr<const std::string>;

[[noreturn]] void refuse(const FileName& file, const toml::source_position& at, std::string_view what) {
  throw FileError(cat(*file, ":", std::max<uint32_t>(at.line, 1), ":", std::max<uint32_t>(at.column, 1), ": ", what));
}

TomlPosition to_position(const FileName& file, const toml::source_region& region) {
  return {file, region.begin.line, region.begin.column};
}

TomlValue to_value(const toml::node& node, const FileName& file);

TomlValue to_table(const toml::table& table, const FileName& file) {
  // The library sorts keys; the order of the file is what a reader of messages expects.
  std::vector<std::pair<const toml::key*, const toml::node*>> members;
  for (const auto& [key, node] : table) members.emplace_back(&key, &node);
  std::stable_sort(members.begin(), members.end(), [](const auto& left, const auto& right) {
    const toml::source_position& a = left.first->source().begin;
    const toml::source_position& b = right.first->source().begin;
    return a.line != b.line ? a.line < b.line : a.column < b.column;
  });
  TomlValue value;
  for (const auto& [key, node] : members) value.add(std::string(key->str()), to_value(*node, file), to_position(file, key->source()));
  return value;
}

TomlValue to_value(const toml::node& node, const FileName& file) {
  TomlValue value;
  if (const auto* table = node.as_table()) {
    value = to_table(*table, file);
  } else if (const auto* array = node.as_array()) {
    TomlValue::Array elements;
    for (const toml::node& element : *array) elements.push_back(to_value(element, file));
    value = TomlValue(std::move(elements));
  } else if (const auto* text = node.as_string()) {
    value = TomlValue(text->get());
  } else if (const auto* integer = node.as_integer()) {
    value = TomlValue(integer->get());
  } else if (const auto* number = node.as_floating_point()) {
    value = TomlValue(number->get());
  } else if (const auto* boolean = node.as_boolean()) {
    value = TomlValue(boolean->get());
  } else {
    refuse(file, node.source().begin, "dates and times are not used here; quote the value if it is text");
  }
  value.set_position(to_position(file, node.source()));
  return value;
}

/// Refuses keys of very many parts before the library sees them: it nests one table a part, and frees them by recursion.
void check_key_parts(std::string_view text, const FileName& file) {
  toml::source_position at{1, 1};
  int parts = 0;
  bool after_dot = false;
  size_t i = 0;
  const auto is_bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  const auto count_part = [&] {
    parts = after_dot ? parts + 1 : 1;
    after_dot = false;
    if (parts > kKeyPartLimit) refuse(file, at, cat("not valid here: a key of more than ", kKeyPartLimit, " parts"));
  };
  while (i < text.size()) {
    const size_t begin = i;
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      parts = 0;
    } else if (c == '"' || c == '\'') {
      const std::string triple(3, c);
      const bool multiline = text.substr(i, 3) == triple;
      i += multiline ? 3 : 1;
      while (i < text.size() && (multiline ? text.substr(i, 3) != triple : text[i] != c && text[i] != '\n')) {
        i += c == '"' && text[i] == '\\' ? 2 : 1;
      }
      i = std::min(i + (multiline ? 3 : 1), text.size());
      count_part();
    } else if (is_bare(c)) {
      while (i < text.size() && is_bare(text[i])) ++i;
      count_part();
    } else {
      if (c == '.') after_dot = true;
      if (c != '.' && c != ' ' && c != '\t') after_dot = false;
      ++i;
    }
    for (size_t j = begin; j < i; ++j) {
      if (text[j] == '\n') {
        ++at.line;
        at.column = 1;
      } else if ((static_cast<unsigned char>(text[j]) & 0xC0) != 0x80) {
        ++at.column;
      }
    }
  }
}

std::string read_file(const FileName& file) {
  const toml::source_position start{1, 1};
  struct stat status {};
  if (stat(file->c_str(), &status) != 0) refuse(file, start, cat("cannot be read: ", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) refuse(file, start, "cannot be read: it is a directory; give a TOML file");
  if (!S_ISREG(status.st_mode)) refuse(file, start, "cannot be read: it is no regular file; give a TOML file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file->c_str(), "rb"), std::fclose);
  if (!stream) refuse(file, start, cat("cannot be read: ", std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> block;
  while (const size_t got = std::fread(block.data(), 1, block.size(), stream.get())) {
    text.append(block.data(), got);
    if (static_cast<int64_t>(text.size()) > kFileLimitBytes) break;  // the size is judged by parse_toml
  }
  if (std::ferror(stream.get())) refuse(file, start, cat("cannot be read: ", std::strerror(errno)));
  return text;
}

/// The line at which reading `text` breaks an assumption of the library, found by reading the first lines alone.
uint32_t line_of_assumption(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') ends.push_back(at);
  }
  ends.push_back(text.size());
  const auto breaks = [&](size_t end) {
    try {
      static_cast<void>(toml::parse(text.substr(0, end)));
    } catch (const TomlAssumption&) {
      return true;
    } catch (const toml::parse_error&) {
    }
    return false;
  };
  const auto first = std::partition_point(ends.begin(), ends.end() - 1, [&](size_t end) { return !breaks(end); });
  return static_cast<uint32_t>(first - ends.begin()) + 1;
}

TomlValue parse(std::string_view text, const FileName& file) {
  if (static_cast<int64_t>(text.size()) > kFileLimitBytes) refuse(file, {1, 1}, "larger than 16 MiB, the limit for TOML files");
  check_key_parts(text, file);
  try {
    const toml::table root = toml::parse(text, *file);
    TomlValue value = to_table(root, file);
    value.set_position({file, 1, 1});
    return value;
  } catch (const toml::parse_error& error) {
    refuse(file, error.source().begin, cat("not valid TOML: ", error.description()));
  } catch (const TomlAssumption&) {
    refuse(file, {line_of_assumption(text), 1}, "not valid TOML: a key or value begins with a character that none can begin with");
  }
}

}  // namespace

TomlValue parse_toml_file(const std::string& path) {
  const auto file = std::make_shared<const std::string>(path);
  return parse(read_file(file), file);
}

TomlValue parse_toml(std::string_view text, std::string_view name) { return parse(text, std::make_shared<const std::string>(name)); }

}  // namespace oom::config
