/// Collects the faults of a configuration, so that a user sees all of them at once.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "oom/error.h"

namespace oom::config {

class Faults {
 public:
  /// Adds one line: "place: table.key: what; got X; cure".
  template <typename... Parts>
  void add(const Parts&... parts) {
    lines_.push_back(cat(parts...));
  }
  /// Remembers that the user gave `name` ("table.key"), though its value is faulty: it is not missing as well.
  void mark(std::string name) { faulty_.insert(std::move(name)); }
  bool is_marked(const std::string& name) const { return faulty_.contains(name); }
  bool empty() const { return lines_.empty(); }
  /// Raises ConfigError with every line, if there is one.
  void raise_if_any() const {
    if (lines_.empty()) return;
    std::string message;
    for (const std::string& line : lines_) message += (message.empty() ? "" : "\n") + line;
    throw ConfigError(message);
  }

 private:
  std::vector<std::string> lines_;
  std::set<std::string> faulty_;
};

}  // namespace oom::config
