#include "checkpoint/safetensors_reader.h"

#include <array>

#include "oom/error.h"

namespace oom::checkpoint {

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(base::File::open(path)) {
  std::array<std::byte, 8> prefix;
  if (file_.size_bytes() < 8) throw FileError(cat(path.string(), ": too short for a safetensors file: ", file_.size_bytes(), " bytes"));
  file_.read_at(0, prefix);
  std::string text(static_cast<size_t>(header_text_bytes(prefix, file_.size_bytes(), path)), '\0');
  file_.read_at(8, std::as_writable_bytes(std::span(text)));
  header_ = parse_header(text, file_.size_bytes(), path);
  by_name_.reserve(header_.tensors.size());
  for (const TensorPlace& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
}

const TensorPlace* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void SafetensorsReader::read(const TensorPlace& tensor, int64_t byte_begin, std::span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  OOM_CHECK(byte_begin >= 0 && byte_begin <= tensor.bytes() && count <= tensor.bytes() - byte_begin, "tensor ", tensor.name, ": bytes [", byte_begin, ", ",
            byte_begin + count, ") of ", tensor.bytes());
  file_.read_at(tensor.file_offset + byte_begin, out);
}

}  // namespace oom::checkpoint
