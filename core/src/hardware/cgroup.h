/// The control groups this process is in, as folders.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace oom::hardware {

/// Returns the folders of this process's own cgroup and its ancestors, own first, in each tree that has `controller` ("memory", "cpu"):
/// version 1 trees of that controller, and the version 2 tree. Inside a container whose mounts begin at its own group, groups above are
/// out of sight. Empty when none is mounted. `root` holds proc/self/cgroup and proc/self/mountinfo.
std::vector<std::filesystem::path> cgroup_folders(const std::filesystem::path& root, const std::string& controller);

/// Reads a file that holds one number; nothing when it is missing, says "max" or holds version 1's idea of no limit.
std::optional<int64_t> read_limit(const std::filesystem::path& file);
/// Reads the number after `key` in a file of "key value" lines.
std::optional<int64_t> read_keyed_number(const std::filesystem::path& file, const std::string& key);

}  // namespace oom::hardware
