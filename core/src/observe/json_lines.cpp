#include "observe/json_lines.h"

#include <fstream>

#include "base/file.h"
#include "oom/error.h"

namespace oom::observe {
namespace {

constexpr int64_t kLargestFile = int64_t{4} << 30;

// The step of a line; -1 where it has none.
int64_t step_of(const nlohmann::json& object) {
  if (!object.is_object()) return -1;
  const auto step = object.find("step");
  return step != object.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

}  // namespace

void JsonLines::keep_until(int64_t step) {
  std::string kept;
  std::ifstream old(path_);
  for (std::string line; std::getline(old, line);) {
    const int64_t of_line = step_of(nlohmann::json::parse(line, nullptr, false));
    if (of_line >= 0 && of_line <= step) kept += line + "\n";
  }
  base::replace_text_file(path_, kept);
}

void JsonLines::append(const nlohmann::ordered_json& object) const {
  const std::string line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  base::File::extend(path_).append(std::as_bytes(std::span(line)));
}

ReadLines read_json_lines(const std::filesystem::path& path) {
  const std::string text = base::read_text_file(path, kLargestFile);
  ReadLines read;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const bool ended = end != std::string::npos;
    const std::string_view line = std::string_view(text).substr(begin, (ended ? end : text.size()) - begin);
    begin = ended ? end + 1 : text.size();
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_object()) {
      read.objects.push_back(std::move(object));
    } else if (ended) {
      read.faults.push_back(cat(path.string(), ":", number, ": is no JSON object"));
    } else {
      read.ends_early = true;
    }
  }
  return read;
}

}  // namespace oom::observe
