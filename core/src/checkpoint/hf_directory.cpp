#include "checkpoint/hf_directory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <system_error>

#include "base/bfloat16.h"
#include "base/text.h"
#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

constexpr int64_t kLargestConfigBytes = 64 << 20;
constexpr int64_t kLargestIndexBytes = 256 << 20;
constexpr size_t kPieceElements = 1 << 18;

std::vector<std::filesystem::path> safetensors_files(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  if (error) throw FileError(cat(folder.string(), ": folder cannot be listed: ", error.message()));
  if (files.empty()) throw FileError(cat(folder.string(), ": no *.safetensors files in this folder. Other weight formats are not read"));
  std::sort(files.begin(), files.end());
  return files;
}

template <typename Convert>
void convert_halves(std::span<const std::byte> raw, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, raw.data() + 2 * i, sizeof bits);
    out[i] = convert(bits);
  }
}

void convert(Dtype dtype, std::span<const std::byte> raw, std::span<float> out) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out.data(), raw.data(), raw.size());
  } else if (dtype == Dtype::kBF16) {
    convert_halves(raw, out, [](uint16_t bits) { return base::from_bfloat16(bits); });
  } else {
    convert_halves(raw, out, [](uint16_t bits) { return base::from_float16(bits); });
  }
}

// One pass without an early exit, which compilers vectorise: nearly always the answer is no.
bool any_not_finite(std::span<const float> values) {
  uint32_t found = 0;
  for (const float value : values) found |= (std::bit_cast<uint32_t>(value) & 0x7F800000u) == 0x7F800000u;
  return found != 0;
}

}  // namespace

std::string read_model_config(const std::filesystem::path& folder) {
  const auto file = folder / "config.json";
  std::string text = base::read_text_file(file, kLargestConfigBytes);
  parse_json(text, file);  // refuses what is no JSON, or is nested so deep that those who read it would run out of stack
  return text;
}

HfDirectory::HfDirectory(const std::filesystem::path& folder) : folder_(folder) {
  const auto index = folder / "model.safetensors.index.json";
  const auto single = folder / "model.safetensors";
  std::error_code ignored;
  if (std::filesystem::exists(index, ignored)) {
    open_indexed(index);
  } else if (std::filesystem::exists(single, ignored)) {
    open_files({single});
  } else {
    open_files(safetensors_files(folder));
  }
  for (const auto& reader : readers_)
    for (const TensorPlace& tensor : reader->header().tensors) tensors_.push_back(&tensor);
  std::sort(tensors_.begin(), tensors_.end(), [](const auto* left, const auto* right) { return left->name < right->name; });
}

void HfDirectory::open_files(const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) {
    readers_.push_back(std::make_unique<SafetensorsReader>(file));
    for (const TensorPlace& tensor : readers_.back()->header().tensors) {
      const auto [existing, added] = by_name_.emplace(tensor.name, Place{readers_.back().get(), &tensor});
      if (!added)
        throw FileError(cat(file.string(), ": tensor ", tensor.name, " is also in ", existing->second.reader->path().filename().string()));
    }
  }
}

void HfDirectory::open_indexed(const std::filesystem::path& index) {
  const nlohmann::json json = parse_json(base::read_text_file(index, kLargestIndexBytes), index);
  const auto& weight_map = json_member(json, "weight_map", index);
  if (!weight_map.is_object()) throw FileError(cat(index.string(), ": weight_map must be an object; got ", weight_map.type_name()));
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map.items()) names.insert(json_file_name(file, cat("weight_map.", tensor), index));
  std::vector<std::filesystem::path> files;
  for (const auto& name : names) files.push_back(folder_ / name);
  open_files(files);
  for (const auto& [tensor, file] : weight_map.items()) {
    const auto found = by_name_.find(tensor);
    const auto name = file.get<std::string>();
    if (found == by_name_.end() || found->second.reader->path().filename() != name)
      throw FileError(cat(index.string(), ": tensor ", tensor, " is not in ", name, ", where the index says it is"));
  }
}

const TensorPlace* HfDirectory::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.tensor;
}

const HfDirectory::Place& HfDirectory::place_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto* tensor : tensors_) names.push_back(tensor->name);
  const auto near = base::nearest_name(name, names);
  throw FileError(cat(folder_.string(), ": tensor ", name, " is missing", near ? "; near it: " + *near : ""));
}

const TensorPlace& HfDirectory::get(std::string_view name) const { return *place_of(name).tensor; }

const std::filesystem::path& HfDirectory::file_of(std::string_view name) const { return place_of(name).reader->path(); }

void HfDirectory::read_bytes(std::string_view name, int64_t byte_begin, std::span<std::byte> out) const {
  const Place& place = place_of(name);
  place.reader->read(*place.tensor, byte_begin, out);
  place.reader->file().drop_cache(place.tensor->file_offset + byte_begin, static_cast<int64_t>(out.size()));
}

void HfDirectory::read_float(std::string_view name, int64_t element_begin, std::span<float> out) const {
  const Place& place = place_of(name);
  const Dtype dtype = place.tensor->dtype;
  if (dtype != Dtype::kBF16 && dtype != Dtype::kF16 && dtype != Dtype::kF32)
    throw FileError(cat(place.reader->path().string(), ": tensor ", name, ": dtype must be BF16, F16 or F32; got ", dtype_name(dtype)));
  const auto width = static_cast<size_t>(dtype_bytes(dtype));
  std::vector<std::byte> raw(std::min(out.size(), kPieceElements) * width);
  for (size_t done = 0; done < out.size();) {
    const auto piece = out.subspan(done, std::min(out.size() - done, kPieceElements));
    const auto bytes = std::span(raw).first(piece.size() * width);
    const int64_t first = element_begin + static_cast<int64_t>(done);
    place.reader->read(*place.tensor, first * static_cast<int64_t>(width), bytes);
    convert(dtype, bytes, piece);
    if (any_not_finite(piece)) {
      const auto bad = std::find_if_not(piece.begin(), piece.end(), [](float value) { return std::isfinite(value); });
      throw FileError(cat(place.reader->path().string(), ": tensor ", name, ": element ", first + (bad - piece.begin()), " of shape ",
                          shape_text(place.tensor->shape), " is not finite; got ", *bad));
    }
    done += piece.size();
  }
  place.reader->file().drop_cache(place.tensor->file_offset + element_begin * static_cast<int64_t>(width), static_cast<int64_t>(out.size() * width));
}

}  // namespace oom::checkpoint
