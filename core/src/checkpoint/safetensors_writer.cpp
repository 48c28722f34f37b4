#include "checkpoint/safetensors_writer.h"

#include <utility>

#include "oom/error.h"

namespace oom::checkpoint {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata, Observer observer)
    : file_(base::File::create(path)), tensors_(std::move(tensors)), observer_(std::move(observer)) {
  const std::string header = format_header(tensors_, metadata);
  const auto bytes = std::as_bytes(std::span(header));
  if (observer_) observer_(bytes);
  file_.append(bytes);
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && current_bytes_ == tensors_[current_].bytes()) {
    ++current_;
    current_bytes_ = 0;
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  OOM_CHECK(current_ < tensors_.size() && tensors_[current_].name == name, "tensor ", name, " given, expected ",
            current_ < tensors_.size() ? tensors_[current_].name : "no more");
  const int64_t count = static_cast<int64_t>(bytes.size());
  OOM_CHECK_LE(current_bytes_ + count, tensors_[current_].bytes(), "bytes of tensor ", name);
  if (observer_) observer_(bytes);
  file_.append(bytes);
  current_bytes_ += count;
  skip_complete();
}

void SafetensorsWriter::finish() {
  OOM_CHECK(current_ == tensors_.size(), file_.path().string(), ": tensor ", tensors_[current_].name, " has ", current_bytes_, " of ",
            tensors_[current_].bytes(), " bytes");
  file_.sync();
}

}  // namespace oom::checkpoint
