/// manifest.json of a checkpoint: written last, it lists every other file with size and checksums, and carries a checksum of itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace oom::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kBlockBytes = int64_t{4} << 20;

struct ManifestFile {
  std::string name;  ///< in the checkpoint's folder
  int64_t bytes = 0;
  std::vector<uint64_t> blocks;  ///< block_checksum.h
};

struct Manifest {
  int64_t step = 0;
  int64_t block_bytes = kBlockBytes;
  std::vector<ManifestFile> files;
};

std::string format_manifest(const Manifest& manifest);
/// Throws FileError for anything wrong: not JSON, another format or a newer version, names outside the folder, counts that do not match.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& file);

}  // namespace oom::checkpoint
