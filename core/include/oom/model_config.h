/// A model's config.json, read key by key. Every key must be read or ignored by name: `finish` refuses what is left, so that a model
/// variant this program does not know is never trained as if it were another.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oom/error.h"

namespace oom {
inline namespace abi_1 {

class OOM_API ModelConfig {
 public:
  /// Parses `text`; `source` names it in messages. Throws FileError when it is no JSON object.
  static ModelConfig parse(const std::string& text, const std::string& source);
  ModelConfig(ModelConfig&&) noexcept;
  ModelConfig& operator=(ModelConfig&&) noexcept;
  ~ModelConfig();

  const std::string& source() const;
  const std::string& text() const;
  /// True when the key is there and not null. Does not count as reading it.
  bool has(const std::string& key) const;

  /// Required values; a missing key or another type is a FileError naming file, key and value. Each marks the key as read.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  std::string string(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key) const;
  std::vector<std::string> strings(const std::string& key) const;
  /// The same with a default for a key that is absent or null.
  int64_t integer(const std::string& key, int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string string(const std::string& key, const std::string& otherwise) const;
  std::vector<int64_t> integers(const std::string& key, const std::vector<int64_t>& otherwise) const;
  /// A nested object, whose keys are tracked with those of its parent. Nothing when absent or null.
  std::optional<ModelConfig> child(const std::string& key) const;

  /// Marks keys as known and without effect on training (token ids, cache settings, ...).
  void ignore(std::initializer_list<const char*> keys) const;
  /// Requires a key, when present, to hold the one value that this program implements.
  void require(const std::string& key, const std::string& json_value, const std::string& why) const;
  /// Throws FileError listing every key, nested ones too, that nobody read, ignored or required.
  void finish() const;

 private:
  struct Node;
  explicit ModelConfig(std::shared_ptr<Node> node);
  std::shared_ptr<Node> node_;
};

}  // namespace abi_1
}  // namespace oom
