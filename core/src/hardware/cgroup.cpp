#include "hardware/cgroup.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>

namespace oom::hardware {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string type, group, folder, controllers;
};

bool lists(const std::string& comma_separated, const std::string& wanted) {
  std::istringstream words(comma_separated);
  for (std::string word; std::getline(words, word, ',');)
    if (word == wanted) return true;
  return false;
}

/// proc/self/mountinfo: id parent device ROOT FOLDER options ... - TYPE source SUPER_OPTIONS
std::vector<Mount> cgroup_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, source;
    Mount mount;
    words >> word >> word >> word >> mount.group >> mount.folder;
    while (words >> word && word != "-") {
    }
    words >> mount.type >> source >> mount.controllers;
    if (mount.type == "cgroup" || mount.type == "cgroup2") mounts.push_back(std::move(mount));
  }
  return mounts;
}

/// proc/self/cgroup: id:CONTROLLERS:GROUP, with no controllers for version 2.
std::optional<std::string> own_group(const fs::path& root, const Mount& mount, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.type == "cgroup2" ? controllers.empty() : lists(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// The part of `group` below the group that a mount begins at; nothing when it is not below.
std::optional<std::string> below(const std::string& group, const std::string& mounted) {
  if (mounted == "/") return group;
  if (group == mounted) return "/";
  if (group.starts_with(mounted + "/")) return group.substr(mounted.size());
  return std::nullopt;
}

}  // namespace

std::vector<fs::path> cgroup_folders(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  for (const Mount& mount : cgroup_mounts(root)) {
    if (mount.type == "cgroup" && !lists(mount.controllers, controller)) continue;
    const fs::path top = root / fs::path(mount.folder).relative_path();
    fs::path relative = fs::path(below(own_group(root, mount, controller).value_or("/"), mount.group).value_or("/")).relative_path();
    std::error_code ignored;
    // A group named from outside the container is not found under the container's mount: its own group is the mount itself.
    if (std::ranges::find(relative, "..") != relative.end() || !fs::is_directory(top / relative, ignored)) relative.clear();
    for (;; relative = relative.parent_path()) {
      folders.push_back(relative.empty() ? top : top / relative);
      if (relative.empty()) break;
    }
  }
  return folders;
}

std::optional<int64_t> read_limit(const fs::path& file) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 writes the largest multiple of a page
  std::ifstream in(file);
  std::string word;
  int64_t value = 0;
  if (!(in >> word)) return std::nullopt;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 0 || value >= kNoLimit) return std::nullopt;
  return value;
}

std::optional<int64_t> read_keyed_number(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

}  // namespace oom::hardware
