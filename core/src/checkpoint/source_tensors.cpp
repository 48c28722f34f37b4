#include "checkpoint/source_tensors.h"

#include <map>

#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

std::vector<TensorInfo> tensors_of(const HfDirectory& files) {
  std::vector<TensorInfo> tensors;
  for (const TensorPlace* tensor : files.tensors()) tensors.push_back(*tensor);
  return tensors;
}

}  // namespace

SourceTensors::SourceTensors(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

SourceTensors::SourceTensors(const HfDirectory& files) : SourceTensors(tensors_of(files)) {}

SourceTensors SourceTensors::parse(const std::string& text, const std::filesystem::path& file) {
  const nlohmann::json json = parse_json(text, file);
  if (!json.is_object()) throw FileError(cat(file.string(), ": must hold an object; got ", json.type_name()));
  std::vector<TensorInfo> tensors;
  for (const auto& [name, value] : json.items()) {
    const std::string dtype = json_string(json_member(value, "dtype", file), cat(name, ".dtype"), file);
    const std::optional<Dtype> known = dtype_named(dtype);
    if (!known) throw FileError(cat(file.string(), ": ", name, ".dtype: unknown; got ", dtype));
    const nlohmann::json& shape = json_member(value, "shape", file);
    if (!shape.is_array()) throw FileError(cat(file.string(), ": ", name, ".shape: must be a list; got ", shape.type_name()));
    TensorInfo tensor{name, *known, {}};
    for (const nlohmann::json& extent : shape) tensor.shape.push_back(json_count(extent, cat(name, ".shape"), file));
    tensors.push_back(std::move(tensor));
  }
  return SourceTensors(std::move(tensors));
}

std::string SourceTensors::format() const {
  nlohmann::json json = nlohmann::json::object();
  for (const TensorInfo& tensor : tensors_) json[tensor.name] = {{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
  return json.dump() + "\n";
}

const TensorInfo* SourceTensors::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Dtype SourceTensors::main_dtype() const {
  std::map<Dtype, int64_t> bytes;
  for (const TensorInfo& tensor : tensors_) bytes[tensor.dtype] += tensor.bytes();
  Dtype most = Dtype::kF32;
  int64_t most_bytes = -1;
  for (const auto& [dtype, count] : bytes) {
    if (count > most_bytes) {
      most = dtype;
      most_bytes = count;
    }
  }
  return most;
}

}  // namespace oom::checkpoint
