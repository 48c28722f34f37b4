#include "config/toml_values.h"

#include <algorithm>
#include <cmath>

#include "oom/error.h"

namespace oom::config {
namespace {

const char* name(TomlValue::Kind kind) {
  switch (kind) {
    case TomlValue::Kind::kTable: return "a table";
    case TomlValue::Kind::kArray: return "a list";
    case TomlValue::Kind::kText: return "text";
    case TomlValue::Kind::kInteger: return "an integer";
    case TomlValue::Kind::kNumber: return "a number";
    case TomlValue::Kind::kBool: return "true or false";
  }
  return "a value";
}

[[noreturn]] void refuse(const TomlValue& value, std::string_view key, std::string_view wanted) {
  throw FileError(cat(value.position().text(), ": ", key, ": must be ", wanted, "; got ", value.text()));
}

const TomlValue& get_kind(const TomlValue& table, std::string_view key, TomlValue::Kind kind) {
  const TomlValue& value = table.get(key);
  if (!value.is(kind)) refuse(value, key, name(kind));
  return value;
}

double finite(const TomlValue& value, std::string_view key) {
  const bool number = value.is(TomlValue::Kind::kNumber) || value.is(TomlValue::Kind::kInteger);
  if (!number || !std::isfinite(value.as_number())) refuse(value, key, "a finite number");
  return value.as_number();
}

}  // namespace

std::string TomlPosition::text() const { return file ? cat(*file, ":", line, ":", column) : "value"; }

TomlValue::TomlValue() = default;
TomlValue::TomlValue(bool value) : value_(value) {}
TomlValue::TomlValue(double value) : value_(value) {}
TomlValue::TomlValue(std::string value) : value_(std::move(value)) {}
TomlValue::TomlValue(const char* value) : value_(std::string(value)) {}
TomlValue::TomlValue(Array values) : value_(std::move(values)) {}
TomlValue::TomlValue(const TomlValue&) = default;
TomlValue::TomlValue(TomlValue&&) noexcept = default;
TomlValue& TomlValue::operator=(const TomlValue&) = default;
TomlValue& TomlValue::operator=(TomlValue&&) noexcept = default;
TomlValue::~TomlValue() = default;

TomlValue::Kind TomlValue::kind() const { return static_cast<Kind>(value_.index()); }

std::string TomlValue::text(size_t limit) const {
  std::string text = write_toml_value(*this);
  if (text.size() <= limit) return text;
  size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a code point
  return text.substr(0, end) + "...";
}

bool TomlValue::as_bool() const {
  OOM_CHECK(is(Kind::kBool), "value is ", name(kind()));
  return std::get<bool>(value_);
}
int64_t TomlValue::as_integer() const {
  OOM_CHECK(is(Kind::kInteger), "value is ", name(kind()));
  return std::get<int64_t>(value_);
}
double TomlValue::as_number() const {
  if (is(Kind::kInteger)) return static_cast<double>(std::get<int64_t>(value_));
  OOM_CHECK(is(Kind::kNumber), "value is ", name(kind()));
  return std::get<double>(value_);
}
const std::string& TomlValue::as_text() const {
  OOM_CHECK(is(Kind::kText), "value is ", name(kind()));
  return std::get<std::string>(value_);
}
const TomlValue::Array& TomlValue::as_array() const {
  OOM_CHECK(is(Kind::kArray), "value is ", name(kind()));
  return std::get<Array>(value_);
}
const TomlValue::Table& TomlValue::as_table() const {
  OOM_CHECK(is(Kind::kTable), "value is ", name(kind()));
  return std::get<Table>(value_);
}

const TomlValue* TomlValue::find(std::string_view key) const {
  for (const Member& member : as_table()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}
const TomlValue& TomlValue::get(std::string_view key) const {
  const TomlValue* value = find(key);
  if (!value) throw FileError(cat(position_.text(), ": ", key, ": missing"));
  return *value;
}
bool TomlValue::get_bool(std::string_view key) const { return get_kind(*this, key, Kind::kBool).as_bool(); }
int64_t TomlValue::get_integer(std::string_view key) const { return get_kind(*this, key, Kind::kInteger).as_integer(); }
double TomlValue::get_number(std::string_view key) const { return finite(get(key), key); }
const std::string& TomlValue::get_text(std::string_view key) const { return get_kind(*this, key, Kind::kText).as_text(); }
const TomlValue& TomlValue::get_table(std::string_view key) const { return get_kind(*this, key, Kind::kTable); }
const TomlValue::Array& TomlValue::get_array(std::string_view key) const { return get_kind(*this, key, Kind::kArray).as_array(); }

std::vector<int64_t> TomlValue::get_integers(std::string_view key) const {
  std::vector<int64_t> integers;
  for (const TomlValue& element : get_array(key)) {
    if (!element.is(Kind::kInteger)) refuse(element, key, "a list of integers");
    integers.push_back(element.as_integer());
  }
  return integers;
}
std::vector<double> TomlValue::get_numbers(std::string_view key) const {
  std::vector<double> numbers;
  for (const TomlValue& element : get_array(key)) numbers.push_back(finite(element, key));
  return numbers;
}
std::vector<std::string> TomlValue::get_texts(std::string_view key) const {
  std::vector<std::string> texts;
  for (const TomlValue& element : get_array(key)) {
    if (!element.is(Kind::kText)) refuse(element, key, "a list of texts");
    texts.push_back(element.as_text());
  }
  return texts;
}

TomlValue& TomlValue::set(std::string_view key, TomlValue value) {
  OOM_CHECK(is(Kind::kTable), "value is ", name(kind()));
  Table& members = std::get<Table>(value_);
  for (Member& member : members) {
    if (member.key == key) return member.value = std::move(value);
  }
  return members.emplace_back(Member{std::string(key), std::move(value), {}}).value;
}
void TomlValue::add(std::string key, TomlValue value, TomlPosition key_position) {
  OOM_CHECK(is(Kind::kTable), "value is ", name(kind()));
  std::get<Table>(value_).push_back({std::move(key), std::move(value), std::move(key_position)});
}
TomlValue& TomlValue::table(std::string_view key) {
  OOM_CHECK(is(Kind::kTable), "value is ", name(kind()));
  for (Member& member : std::get<Table>(value_)) {
    if (member.key == key) return member.value;
  }
  return set(key, TomlValue());
}
void TomlValue::append(TomlValue value) {
  OOM_CHECK(is(Kind::kArray), "value is ", name(kind()));
  std::get<Array>(value_).push_back(std::move(value));
}

bool operator==(const TomlValue& left, const TomlValue& right) {
  if (left.kind() != right.kind()) return false;
  if (!left.is(TomlValue::Kind::kTable)) {
    return std::visit(
        [&](const auto& content) {
          using T = std::decay_t<decltype(content)>;
          if constexpr (std::is_same_v<T, TomlValue::Table>) {
            return true;
          } else {
            return content == std::get<T>(right.value_);
          }
        },
        left.value_);
  }
  const TomlValue::Table& members = left.as_table();
  return members.size() == right.as_table().size() && std::all_of(members.begin(), members.end(), [&](const auto& member) {
           const TomlValue* other = right.find(member.key);
           return other && *other == member.value;
         });
}

}  // namespace oom::config
