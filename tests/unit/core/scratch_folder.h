/// A folder of its own for a test, removed at the end, and whole files in and out.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oom::testing {

class ScratchFolder {
 public:
  /// kMemory is for tests that write thousands of files, where the disk would set the pace.
  enum Place { kDisk, kMemory };
  explicit ScratchFolder(Place place = kDisk) {
    const std::filesystem::path memory = "/dev/shm";
    const bool in_memory = place == kMemory && ::access(memory.c_str(), W_OK) == 0;
    std::string name = ((in_memory ? memory : std::filesystem::temp_directory_path()) / "oom_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Writes a new file in place of an old one. (Cutting the old one and writing it again makes ext4 wait for the disk every time.)
inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace oom::testing
