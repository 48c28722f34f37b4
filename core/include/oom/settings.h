/// Settings described as data: what a TOML table may hold, and the typed values read from it.
///
/// A plugin states its table once, as a `SettingsSchema`, and hands it to the core when it is loaded. The core reads the table of
/// that name from the user's file and from `--set`, reports every fault with file, line and column, and gives the plugin a
/// `SettingsTable` back. The core's own tables use the same mechanism. Tables of plugins that are not in use are read too.
///
///     SettingsSchema schema{.table = "ep", .settings = {
///         {.key = "routing_chunk", .forms = kIntegerForm, .words = {"auto"}, .unit = "tokens", .range = at_least(1),
///          .fallback = "auto", .doc = "Tokens exchanged at once by a routed layer."}}};
///     ...
///     if (!settings.is_auto("routing_chunk")) chunk_tokens = settings.get_integer("routing_chunk");
///
/// Everything here is a plain value: copy it, read it from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

/// The value of a setting. `std::monostate`: left out, and without a default. Sizes are bytes in an int64_t; words such as "auto" are text.
using SettingValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                  std::vector<std::string>>;

/// The forms a value may take, besides its words; combine them with `|`.
using SettingForms = uint32_t;
inline constexpr SettingForms kBoolForm = 1u << 0;
inline constexpr SettingForms kIntegerForm = 1u << 1;
inline constexpr SettingForms kNumberForm = 1u << 2;       ///< finite; integers are taken too
inline constexpr SettingForms kTextForm = 1u << 3;         ///< not empty, UTF-8 without NUL
inline constexpr SettingForms kBytesForm = 1u << 4;        ///< "64MiB", or an integer of bytes; read as int64_t
inline constexpr SettingForms kIntegerListForm = 1u << 5;  ///< layer indices, steps
inline constexpr SettingForms kNumberListForm = 1u << 6;
inline constexpr SettingForms kTextListForm = 1u << 7;
inline constexpr SettingForms kBytesListForm = 1u << 8;  ///< read as integers

/// Bounds of a number, of a size in bytes, or of each element of a list of them.
struct SettingRange {
  std::optional<double> minimum;
  std::optional<double> maximum;
  bool minimum_excluded = false;
  bool maximum_excluded = false;
};
constexpr SettingRange at_least(double minimum) { return {minimum, std::nullopt, false, false}; }
constexpr SettingRange greater_than(double minimum) { return {minimum, std::nullopt, true, false}; }
constexpr SettingRange between(double minimum, double maximum) { return {minimum, maximum, false, false}; }

/// One key of a table.
struct Setting {
  std::string key;                 ///< a snake_case noun
  SettingForms forms = 0;          ///< 0: one of `words` only (an enumeration)
  std::vector<std::string> words;  ///< texts with a meaning of their own: "auto", "all", "none"
  std::string unit;                ///< "tokens", "steps", "layers"; empty for bytes, texts and pure numbers
  SettingRange range;
  SettingValue fallback;  ///< the default; std::monostate: the key may be left out, and `left_out` says what that means
  bool required = false;  ///< true: the key must be given; `fallback` is then the example in the reference
  bool distinct = false;  ///< of a list: no element twice
  std::optional<size_t> items;  ///< of a list: the exact number of elements; otherwise any number from one up, or none where `may_be_empty`
  bool may_be_empty = false;
  std::string text_form;  ///< what a text looks like, for messages: "n+1"
  /// Judges a value that fits forms and range; returns what is wrong with it ("must be ..."), or nothing. May be null.
  std::string (*check)(const SettingValue&) = nullptr;
  std::string left_out;  ///< what leaving the key out means: "every GPU"
  std::string doc;       ///< one sentence, ending with a full stop
};

/// One table of the configuration.
struct SettingsSchema {
  std::string table;  ///< its name in TOML: for a plugin, the plugin's name
  std::string doc;    ///< one sentence
  std::vector<Setting> settings;

  const Setting* find(std::string_view key) const {
    for (const Setting& setting : settings) {
      if (setting.key == key) return &setting;
    }
    return nullptr;
  }
};

/// Raises Error when `schema` contradicts itself: a key twice or not in snake_case, a default that its own setting refuses, no
/// sentence of documentation. The core calls it for each plugin at load.
OOM_API void check_schema(const SettingsSchema& schema);

/// Which layers a setting of the kind `auto | all | none | count | [layer indices]` names.
struct LayerChoice {
  enum class Kind { kAuto, kAll, kNone, kCount, kList };
  Kind kind = Kind::kAuto;
  int64_t count = 0;            ///< of kCount
  std::vector<int64_t> layers;  ///< of kList, ascending

  bool is_auto() const { return kind == Kind::kAuto; }
  bool operator==(const LayerChoice&) const = default;
};

/// The values of one table, checked against its schema. The getters raise Error when the schema knows no such key or the value
/// has another form: ask `is_auto`, `is_word` or `has_value` first where a setting takes several.
class OOM_API SettingsTable {
 public:
  SettingsTable() = default;
  /// Holds the defaults of `schema`.
  explicit SettingsTable(const SettingsSchema& schema);

  const std::string& name() const { return name_; }
  /// True when the user gave the key, in the file or by --set; false when the value is the default.
  bool is_given(std::string_view key) const;
  /// False when the key was left out and has no default.
  bool has_value(std::string_view key) const;
  /// True when the value is the word "auto", or was left out and has no default: the engine decides.
  bool is_auto(std::string_view key) const;
  bool is_word(std::string_view key, std::string_view word) const;

  bool get_bool(std::string_view key) const;
  int64_t get_integer(std::string_view key) const;
  double get_number(std::string_view key) const;
  const std::string& get_text(std::string_view key) const;
  int64_t get_bytes(std::string_view key) const;
  const std::vector<int64_t>& get_integers(std::string_view key) const;
  const std::vector<double>& get_numbers(std::string_view key) const;
  const std::vector<std::string>& get_texts(std::string_view key) const;
  const SettingValue& get(std::string_view key) const;

  /// The integer, or nothing when `is_auto`.
  std::optional<int64_t> find_integer(std::string_view key) const;
  std::optional<std::string> find_text(std::string_view key) const;

  /// Reads a setting of words (auto, all, none), a count, or a list of layers.
  LayerChoice get_layers(std::string_view key) const;
  /// The layers that the setting names in a model of `layer_count` layers, ascending; a count n means layers 0 to n-1; nothing
  /// when it is "auto". Raises ConfigError when a layer does not exist there.
  std::optional<std::vector<int64_t>> resolve_layers(std::string_view key, int64_t layer_count) const;

  /// Where the value comes from, with its name, to begin the message of a later check: "run.toml:9:14: ep.routing_chunk", or
  /// "--set ep.routing_chunk". For a key left out: the place of its table in the file.
  std::string where(std::string_view key) const;

  /// Keys in the order of the schema.
  std::vector<std::string> keys() const;

  /// Sets a value that has been checked; for the reader of the configuration. `place` is "file:line:column" or "--set".
  void set(std::string_view key, SettingValue value, std::string place);
  /// Sets the place named for keys that were left out.
  void set_place(std::string place) { place_ = std::move(place); }

  /// Same table, keys and values; where they came from does not matter.
  bool operator==(const SettingsTable& other) const;

 private:
  struct Entry {
    std::string key;
    SettingValue value;
    bool given = false;
    std::string place;
  };
  const Entry& entry(std::string_view key) const;
  template <typename T>
  const T& value_as(std::string_view key, const char* form) const;

  std::string name_;
  std::string place_;
  std::vector<Entry> entries_;
};

/// Reads `toml`, the body of one table without its header line, against `schema`: for tests of plugins and for tools.
/// `place` names the text in messages. Raises ConfigError with every fault.
OOM_API SettingsTable parse_settings(const SettingsSchema& schema, std::string_view toml, std::string_view place = "settings");
/// The same for a table of a plan (Plan::settings): each key's value as TOML text.
OOM_API SettingsTable parse_settings(const SettingsSchema& schema, const std::map<std::string, std::string>& values, std::string_view place);

}  // namespace abi_1
}  // namespace oom
