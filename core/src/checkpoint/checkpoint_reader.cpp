#include "checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "checkpoint/block_checksum.h"
#include "checkpoint/json_text.h"
#include "checkpoint/tensor_files.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

constexpr int64_t kLargestManifestBytes = 256 << 20;
constexpr int64_t kLargestTextBytes = 256 << 20;

}  // namespace

struct CheckpointReader::CheckedFile {
  CheckedFile(const ManifestFile& listed, const std::filesystem::path& path)
      : entry(listed), file(base::File::open(path)), good(std::make_unique<std::atomic<bool>[]>(listed.blocks.size())) {}

  const ManifestFile& entry;
  base::File file;
  std::optional<SafetensorsReader> tensors;
  std::unique_ptr<std::atomic<bool>[]> good;  // of each block: its checksum has been compared
};

CheckpointReader::CheckpointReader(const std::filesystem::path& folder) : folder_(folder) {
  const auto manifest_path = folder_ / kManifestName;
  std::error_code ignored;
  if (!std::filesystem::exists(folder_, ignored)) refuse("no such checkpoint");
  if (!std::filesystem::exists(manifest_path, ignored)) refuse(cat("has no ", kManifestName, ": half-written, or not a checkpoint"));
  manifest_ = parse_manifest(base::read_text_file(manifest_path, kLargestManifestBytes), manifest_path);
  open_files();
  collect_tensors();
  state_ = parse_training_state(text(kStateName), folder_ / kStateName);
  if (state_.step != manifest_.step) refuse(cat(kStateName, " is of step ", state_.step, ", ", kManifestName, " of step ", manifest_.step));
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::refuse(const std::string& why) const { throw FileError(cat(folder_.string(), ": ", why)); }

void CheckpointReader::open_files() {
  for (const ManifestFile& entry : manifest_.files) {
    files_.push_back(std::make_unique<CheckedFile>(entry, folder_ / entry.name));
    CheckedFile& file = *files_.back();
    if (file.file.size_bytes() != entry.bytes) refuse(cat(entry.name, " has ", file.file.size_bytes(), " bytes, but was written with ", entry.bytes));
    if (!entry.name.ends_with(".safetensors")) continue;
    file.tensors.emplace(file.file.path());
    std::vector<std::byte> header(static_cast<size_t>(file.tensors->header().header_bytes));
    read_checked(file, 0, header);
  }
}

void CheckpointReader::collect_tensors() {
  std::array<size_t, 3> counts{};
  for (const auto& file : files_) {
    if (!file->tensors) continue;
    const auto& header = file->tensors->header();
    const auto named = header.metadata.find("stream");
    const auto stream = std::find_if(std::begin(kStateStreams), std::end(kStateStreams),
                                     [&](StateStream known) { return named != header.metadata.end() && named->second == stream_name(known); });
    if (stream == std::end(kStateStreams)) refuse(cat(file->entry.name, " does not say which stream it holds (__metadata__.stream: master, m or v)"));
    for (const TensorPlace& tensor : header.tensors) {
      if (tensor.dtype != Dtype::kF32) refuse(cat(file->entry.name, ": tensor ", tensor.name, " must be F32; got ", dtype_name(tensor.dtype)));
      Place& place = places_[tensor.name][static_cast<size_t>(*stream)];
      if (place.tensor != nullptr) refuse(cat("tensor ", tensor.name, " is in ", place.file->entry.name, " and in ", file->entry.name));
      place = {file.get(), &tensor};
      ++counts[static_cast<size_t>(*stream)];
      if (*stream == StateStream::kMaster) tensors_.push_back(tensor);
    }
  }
  for (const auto& [name, places] : places_) {
    for (const StateStream stream : kStateStreams) {
      const TensorPlace* tensor = places[static_cast<size_t>(stream)].tensor;
      if (tensor == nullptr) refuse(cat("tensor ", name, " has no stream ", stream_name(stream)));
      if (tensor->shape != places[0].tensor->shape)
        refuse(cat("tensor ", name, " has shape ", shape_text(places[0].tensor->shape), " in master, but ", shape_text(tensor->shape), " in ", stream_name(stream)));
    }
  }
}

const TensorInfo* CheckpointReader::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second[0].tensor;
}

int64_t CheckpointReader::bytes() const {
  int64_t total = 0;
  for (const ManifestFile& file : manifest_.files) total += file.bytes;
  return total;
}

void CheckpointReader::read(std::string_view name, StateStream stream, int64_t element_begin, std::span<float> out) const {
  const auto found = places_.find(name);
  if (found == places_.end()) refuse(cat("tensor ", name, " is missing"));
  const auto& [file, tensor] = found->second[static_cast<size_t>(stream)];
  const int64_t count = static_cast<int64_t>(out.size());
  OOM_CHECK(element_begin >= 0 && element_begin <= tensor->elements() && count <= tensor->elements() - element_begin, "tensor ", name, ": elements [",
            element_begin, ", ", element_begin + count, ") of ", tensor->elements());
  read_checked(*file, tensor->file_offset + 4 * element_begin, std::as_writable_bytes(out));
}

const CheckpointReader::CheckedFile* CheckpointReader::find_file(std::string_view name) const {
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file->entry.name == name; });
  return found == files_.end() ? nullptr : found->get();
}

bool CheckpointReader::has_text(std::string_view name) const { return find_file(name) != nullptr; }

std::string CheckpointReader::text(std::string_view name) const {
  const CheckedFile* file = find_file(name);
  if (file == nullptr) refuse(cat(name, " is missing"));
  if (file->entry.bytes > kLargestTextBytes) refuse(cat(name, " is too large for a text: ", file->entry.bytes, " bytes"));
  std::string content(static_cast<size_t>(file->entry.bytes), '\0');
  read_checked(*file, 0, std::as_writable_bytes(std::span(content)));
  return content;
}

void CheckpointReader::check_block(const CheckedFile& file, int64_t block, std::span<const std::byte> bytes) const {
  const auto index = static_cast<size_t>(block);
  if (checksum(bytes) != file.entry.blocks[index])
    refuse(cat(file.entry.name, " is damaged: checksum of bytes ", block * manifest_.block_bytes, " to ",
               block * manifest_.block_bytes + static_cast<int64_t>(bytes.size()) - 1, " differs"));
  file.good[index] = true;
}

void CheckpointReader::read_checked(const CheckedFile& file, int64_t offset, std::span<std::byte> out) const {
  std::vector<std::byte> whole;
  while (!out.empty()) {
    const int64_t block = offset / manifest_.block_bytes;
    const int64_t block_begin = block * manifest_.block_bytes;
    const int64_t block_size = std::min(manifest_.block_bytes, file.entry.bytes - block_begin);
    const auto piece = out.first(std::min(out.size(), static_cast<size_t>(block_begin + block_size - offset)));
    if (static_cast<int64_t>(piece.size()) == block_size) {
      file.file.read_at(offset, piece);
      check_block(file, block, piece);
      file.file.drop_cache(offset, block_size);
    } else if (file.good[static_cast<size_t>(block)]) {
      file.file.read_at(offset, piece);
    } else {
      whole.resize(static_cast<size_t>(block_size));
      file.file.read_at(block_begin, whole);
      check_block(file, block, whole);
      const auto inside = std::span(whole).subspan(static_cast<size_t>(offset - block_begin), piece.size());
      std::copy(inside.begin(), inside.end(), piece.begin());
    }
    offset += static_cast<int64_t>(piece.size());
    out = out.subspan(piece.size());
  }
}

void CheckpointReader::verify(int threads) const {
  struct Run {
    const CheckedFile* file;
    int64_t offset;
    int64_t bytes;
  };
  const int64_t run_bytes = std::max<int64_t>(1, (int64_t{32} << 20) / manifest_.block_bytes) * manifest_.block_bytes;
  std::vector<Run> runs;
  for (const auto& file : files_)
    for (int64_t offset = 0; offset < file->entry.bytes; offset += run_bytes)
      runs.push_back({file.get(), offset, std::min(run_bytes, file->entry.bytes - offset)});
  for_each_parallel(runs.size(), threads, [&](size_t i) {
    const Run& run = runs[i];
    std::vector<std::byte> block(static_cast<size_t>(std::min(manifest_.block_bytes, run.bytes)));
    for (int64_t done = 0; done < run.bytes; done += manifest_.block_bytes)
      read_checked(*run.file, run.offset + done, std::span(block).first(static_cast<size_t>(std::min(manifest_.block_bytes, run.bytes - done))));
  });
}

}  // namespace oom::checkpoint
