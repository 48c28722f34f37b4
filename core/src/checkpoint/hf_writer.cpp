#include "checkpoint/hf_writer.h"

#include <cstdio>
#include <system_error>

#include "base/file.h"
#include "checkpoint/json_text.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_files.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::filesystem::path part_of(const std::filesystem::path& file) { return file.string() + ".part"; }

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) throw FileError(cat(to.string(), ": cannot be renamed from ", from.filename().string(), ": ", error.message()));
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  base::write_text_file(part_of(file), text);
  rename_file(part_of(file), file);
}

void prepare_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(cat(folder.string(), ": folder cannot be made: ", error.message()));
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name == "config.json" || name == "model.safetensors.index.json" || name.ends_with(".safetensors"))
      throw FileError(cat(folder.string(), ": holds a model already (", name, "); give another folder, or remove it"));
    if (name.ends_with(".safetensors.part") || name.ends_with(".json.part")) std::filesystem::remove(entry->path(), error);  // of an interrupted export
  }
  if (error) throw FileError(cat(folder.string(), ": folder cannot be listed: ", error.message()));
}

}  // namespace

void write_hf_directory(const std::filesystem::path& folder, const std::string& config_text, std::span<const TensorInfo> tensors,
                        const ByteSource& source, const HfWriteOptions& options) {
  OOM_CHECK(!tensors.empty(), "no tensors to write");
  prepare_folder(folder);
  const auto shards = spread_over_files(tensors, options.shard_bytes);
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  for_each_parallel(shards.size(), options.threads, [&](size_t i) {
    const auto own = tensors.subspan(shards[i].first, shards[i].second - shards[i].first);
    SafetensorsWriter writer(part_of(folder / shard_name(i, shards.size())), {own.begin(), own.end()}, metadata);
    for (const TensorInfo& tensor : own) source(tensor, [&](std::span<const std::byte> bytes) { writer.append(tensor.name, bytes); });
    writer.finish();
  });

  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    rename_file(part_of(folder / name), folder / name);
    for (size_t t = shards[i].first; t < shards[i].second; ++t) {
      weight_map[tensors[t].name] = name;
      total_bytes += tensors[t].bytes();
    }
  }
  if (shards.size() > 1) {
    const nlohmann::json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  write_text(folder / "config.json", config_text);
  base::sync_folder(folder);
}

}  // namespace oom::checkpoint
