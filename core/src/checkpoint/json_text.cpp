#include "checkpoint/json_text.h"

#include <limits>
#include <unordered_set>
#include <vector>

#include "oom/error.h"

namespace oom::checkpoint {
namespace {

constexpr int kDeepest = 64;

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file) {
  using Event = nlohmann::json::parse_event_t;
  // The parser takes a zero byte for the end, whatever follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) throw FileError(cat(file.string(), ": is not valid JSON: zero byte at byte ", zero));
  std::vector<std::unordered_set<std::string>> open_objects;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kDeepest) throw FileError(cat(file.string(), ": JSON is nested deeper than ", kDeepest, " levels"));
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(parsed.get_ref<const std::string&>()).second)
      throw FileError(cat(file.string(), ": key appears twice: ", parsed.get_ref<const std::string&>()));
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw FileError(cat(file.string(), ": is not valid JSON: ", error.what()));
  }
}

const nlohmann::json& json_member(const nlohmann::json& object, const char* key, const std::filesystem::path& file) {
  if (!object.is_object()) throw FileError(cat(file.string(), ": an object with ", key, " is expected; got ", object.type_name()));
  const auto found = object.find(key);
  if (found == object.end()) throw FileError(cat(file.string(), ": ", key, " is missing"));
  return *found;
}

int64_t json_count(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw FileError(cat(file.string(), ": ", key, " must be a whole number from 0 to 2^63 - 1; got ", value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 80)));
  return value.get<int64_t>();
}

std::string json_string(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file) {
  if (!value.is_string()) throw FileError(cat(file.string(), ": ", key, " must be text; got ", value.type_name()));
  return value.get<std::string>();
}

std::string json_file_name(const nlohmann::json& value, std::string_view key, const std::filesystem::path& file) {
  std::string name = json_string(value, key, file);
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    throw FileError(cat(file.string(), ": ", key, " must be the name of a file in the same folder; got '", name, "'"));
  return name;
}

}  // namespace oom::checkpoint
