/// A file of JSON objects, one a line, that grows while a run goes on and is read by people, by tools and by `oom report`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace oom::observe {

/// Appends lines and flushes each, so that a killed run keeps every line it wrote. Failures are FileErrors.
class JsonLines {
 public:
  explicit JsonLines(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }

  /// Drops lines of steps after `step`, and what is no object with a step: a resumed run does not tell a step twice. Without a file makes an empty one.
  void keep_until(int64_t step);
  void append(const nlohmann::ordered_json& object) const;

 private:
  std::filesystem::path path_;
};

/// What such a file holds.
struct ReadLines {
  std::vector<nlohmann::json> objects;
  std::vector<std::string> faults;  ///< "run/metrics.jsonl:17: is no JSON object", one for each line that could not be read
  bool ends_early = false;          ///< the last line has no end and could not be read: it was being written
};
/// Reads what can be read. Throws FileError when there is no such file or it cannot be read at all.
ReadLines read_json_lines(const std::filesystem::path& path);

}  // namespace oom::observe
