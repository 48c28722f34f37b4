/// TOML as a plain value tree, read and written: configuration, plan and calibration files. The only door to the TOML library.
///
/// Limits of the reader: 16 MiB a file, 16 parts in a dotted key, 64 nested arrays or inline tables, 64-bit integers; dates and
/// times are refused. Input is untrusted: whatever the bytes are, the outcome is a tree or a FileError with file:line:column.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace oom::config {

/// A place in a file; without one for values made by the program.
struct TomlPosition {
  std::shared_ptr<const std::string> file;  ///< shared by all values of a file
  uint32_t line = 0;
  uint32_t column = 0;  ///< in code points, from 1

  /// "plan.toml:3:9", or "value" without a file.
  std::string text() const;
};

/// A table, array, text, integer, number or boolean. Tables keep the order of their keys.
class TomlValue {
 public:
  enum class Kind { kTable, kArray, kText, kInteger, kNumber, kBool };
  struct Member;
  using Array = std::vector<TomlValue>;
  using Table = std::vector<Member>;

  TomlValue();  ///< an empty table
  TomlValue(bool value);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  TomlValue(T value) : value_(static_cast<int64_t>(value)) {}
  TomlValue(double value);
  TomlValue(std::string value);
  TomlValue(const char* value);
  TomlValue(Array values);
  template <typename T>
    requires(!std::same_as<T, TomlValue>)
  TomlValue(const std::vector<T>& values) : value_(Array(values.begin(), values.end())) {}
  TomlValue(const TomlValue&);
  TomlValue(TomlValue&&) noexcept;
  TomlValue& operator=(const TomlValue&);
  TomlValue& operator=(TomlValue&&) noexcept;
  ~TomlValue();

  Kind kind() const;
  bool is(Kind kind) const { return this->kind() == kind; }
  const TomlPosition& position() const { return position_; }
  void set_position(TomlPosition position) { position_ = std::move(position); }
  /// The value as TOML on one line, cut to `limit` bytes: for messages.
  std::string text(size_t limit = 60) const;

  // The content; raises Error (a defect of the caller) when the kind is another.
  bool as_bool() const;
  int64_t as_integer() const;
  double as_number() const;  ///< of an integer too; may be infinite or not a number
  const std::string& as_text() const;
  const Array& as_array() const;
  const Table& as_table() const;

  // Members of a table. The get functions raise FileError, naming file:line:column and key, when the key is missing or its value
  // has another kind; get_number takes integers too and refuses what is not finite.
  const TomlValue* find(std::string_view key) const;
  const TomlValue& get(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  int64_t get_integer(std::string_view key) const;
  double get_number(std::string_view key) const;
  const std::string& get_text(std::string_view key) const;
  const TomlValue& get_table(std::string_view key) const;
  const Array& get_array(std::string_view key) const;
  std::vector<int64_t> get_integers(std::string_view key) const;
  std::vector<double> get_numbers(std::string_view key) const;
  std::vector<std::string> get_texts(std::string_view key) const;
  /// Adds or replaces a member, and returns it.
  TomlValue& set(std::string_view key, TomlValue value);
  /// Adds a member that is not there yet, with the position of its key: for the reader, which knows keys to be distinct.
  void add(std::string key, TomlValue value, TomlPosition key_position);
  /// The member `key`, which is added as an empty table when missing.
  TomlValue& table(std::string_view key);
  void append(TomlValue value);  ///< to an array

 private:
  friend bool operator==(const TomlValue& left, const TomlValue& right);
  std::variant<Table, Array, std::string, int64_t, double, bool> value_;
  TomlPosition position_;
};

struct TomlValue::Member {
  std::string key;
  TomlValue value;
  TomlPosition position;  ///< of the key
};

/// Same kinds and contents; positions and the order of keys do not matter.
bool operator==(const TomlValue& left, const TomlValue& right);

/// Reads a file into its root table. Raises FileError "path:line:column: ..." for anything that is no regular, readable, valid file.
TomlValue parse_toml_file(const std::string& path);
/// Reads text; `name` stands for the file in positions and messages.
TomlValue parse_toml(std::string_view text, std::string_view name);

/// Writes a root table: members that are no tables first, then [tables] and [[arrays of tables]] in their order. Numbers are
/// written so that they read back to the same bits.
std::string write_toml(const TomlValue& root);
/// One value on one line, as it stands right of an equals sign.
std::string write_toml_value(const TomlValue& value);
/// A key as it stands left of an equals sign: quoted only where TOML asks for it.
std::string write_toml_key(std::string_view key);

}  // namespace oom::config
