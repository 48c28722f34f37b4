#include "checkpoint/manifest.h"

#include <charconv>
#include <cstdio>
#include <set>

#include "checkpoint/block_checksum.h"
#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

constexpr const char* kFormat = "oom-checkpoint";
constexpr int64_t kLeastBlockBytes = 64;
constexpr int64_t kLargestBlockBytes = int64_t{1} << 30;

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

uint64_t parse_hex(const nlohmann::json& value, const std::filesystem::path& file) {
  const std::string text = json_string(value, "xxh3", file);
  uint64_t result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result, 16);
  if (text.size() != 16 || error != std::errc{} || end != text.data() + text.size())
    throw FileError(cat(file.string(), ": xxh3 must be 16 hexadecimal digits; got ", text.substr(0, 40)));
  return result;
}

// Of the rest in its shortest form, whose keys are ordered: spaces may change, content may not.
std::string own_checksum(const nlohmann::json& json) {
  const std::string text = json.dump();
  return hex(checksum(std::as_bytes(std::span(text))));
}

ManifestFile parse_file(const nlohmann::json& entry, int64_t block_bytes, const std::filesystem::path& file) {
  ManifestFile result;
  result.name = json_file_name(json_member(entry, "name", file), "name", file);
  result.bytes = json_count(json_member(entry, "bytes", file), "bytes", file);
  const auto& blocks = json_member(entry, "xxh3", file);
  const int64_t expected = result.bytes / block_bytes + (result.bytes % block_bytes != 0);
  if (!blocks.is_array() || static_cast<int64_t>(blocks.size()) != expected)
    throw FileError(cat(file.string(), ": ", result.name, ": ", expected, " block checksums are expected; got ", blocks.size()));
  for (const auto& block : blocks) result.blocks.push_back(parse_hex(block, file));
  return result;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::array();
  for (const ManifestFile& file : manifest.files) {
    nlohmann::json blocks = nlohmann::json::array();
    for (const uint64_t block : file.blocks) blocks.push_back(hex(block));
    files.push_back({{"name", file.name}, {"bytes", static_cast<uint64_t>(file.bytes)}, {"xxh3", std::move(blocks)}});
  }
  nlohmann::json json{{"format", kFormat},
                      {"version", static_cast<uint64_t>(kFormatVersion)},
                      {"step", static_cast<uint64_t>(manifest.step)},
                      {"block_bytes", static_cast<uint64_t>(manifest.block_bytes)},
                      {"files", std::move(files)}};
  json["checksum"] = own_checksum(json);
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& file) {
  nlohmann::json json = parse_json(text, file);
  if (const auto format = json_string(json_member(json, "format", file), "format", file); format != kFormat)
    throw FileError(cat(file.string(), ": format must be ", kFormat, "; got ", format));
  if (const auto version = json_count(json_member(json, "version", file), "version", file); version != kFormatVersion)
    throw FileError(cat(file.string(), ": checkpoint format version must be ", kFormatVersion, "; got ", version,
                        ": written by another version of this program"));
  const auto written = json_string(json_member(json, "checksum", file), "checksum", file);
  json.erase("checksum");
  // Damaged text may hold bytes that JSON cannot repeat; parse_json has refused those already.
  if (const auto actual = own_checksum(json); actual != written)
    throw FileError(cat(file.string(), ": is damaged: its checksum is ", actual, ", written was ", written));

  Manifest manifest;
  manifest.step = json_count(json_member(json, "step", file), "step", file);
  manifest.block_bytes = json_count(json_member(json, "block_bytes", file), "block_bytes", file);
  if (manifest.block_bytes < kLeastBlockBytes || manifest.block_bytes > kLargestBlockBytes)
    throw FileError(cat(file.string(), ": block_bytes must be from ", kLeastBlockBytes, " to ", kLargestBlockBytes, "; got ", manifest.block_bytes));
  const auto& files = json_member(json, "files", file);
  if (!files.is_array()) throw FileError(cat(file.string(), ": files must be an array; got ", files.type_name()));
  std::set<std::string> names;
  for (const auto& entry : files) {
    manifest.files.push_back(parse_file(entry, manifest.block_bytes, file));
    if (!names.insert(manifest.files.back().name).second) throw FileError(cat(file.string(), ": file is listed twice: ", manifest.files.back().name));
  }
  return manifest;
}

}  // namespace oom::checkpoint
