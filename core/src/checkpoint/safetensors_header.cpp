#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "checkpoint/json_text.h"
#include "oom/error.h"

namespace oom::checkpoint {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array kDtypes{
    DtypeRow{Dtype::kBool, "BOOL", 1},     DtypeRow{Dtype::kU8, "U8", 1},         DtypeRow{Dtype::kI8, "I8", 1},
    DtypeRow{Dtype::kF8E5M2, "F8_E5M2", 1}, DtypeRow{Dtype::kF8E4M3, "F8_E4M3", 1}, DtypeRow{Dtype::kF8E8M0, "F8_E8M0", 1},
    DtypeRow{Dtype::kI16, "I16", 2},       DtypeRow{Dtype::kU16, "U16", 2},       DtypeRow{Dtype::kF16, "F16", 2},
    DtypeRow{Dtype::kBF16, "BF16", 2},     DtypeRow{Dtype::kI32, "I32", 4},       DtypeRow{Dtype::kU32, "U32", 4},
    DtypeRow{Dtype::kF32, "F32", 4},       DtypeRow{Dtype::kF64, "F64", 8},       DtypeRow{Dtype::kI64, "I64", 8},
    DtypeRow{Dtype::kU64, "U64", 8},       DtypeRow{Dtype::kC64, "C64", 8}};

const DtypeRow& row_of(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }
static_assert(kDtypes[static_cast<size_t>(Dtype::kC64)].dtype == Dtype::kC64);

constexpr const char* kMetadata = "__metadata__";

class HeaderParser {
 public:
  HeaderParser(std::string_view text, int64_t file_bytes, const std::filesystem::path& file) : file_(file) {
    header_.header_bytes = 8 + static_cast<int64_t>(text.size());
    header_.file_bytes = file_bytes;
    if (!text.starts_with('{')) throw FileError(cat(file_.string(), ": safetensors header must begin with {"));
    const nlohmann::json json = parse_json(text, file_);
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata) {
        parse_metadata(value);
      } else {
        parse_tensor(name, value);
      }
    }
  }

  SafetensorsHeader finish() {
    auto& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const TensorPlace& left, const TensorPlace& right) {
      return std::pair(left.file_offset, left.bytes()) < std::pair(right.file_offset, right.bytes());
    });
    int64_t end = header_.header_bytes;
    for (const TensorPlace& tensor : tensors) {
      if (tensor.file_offset != end)
        refuse(tensor.name, cat(tensor.file_offset < end ? "overlaps the tensor before it" : "leaves a hole before it", ": begins at byte ",
                                tensor.file_offset, " of the file, expected ", end));
      end += tensor.bytes();
    }
    if (end != header_.file_bytes)
      throw FileError(cat(file_.string(), ": tensors end at byte ", end, " but the file has ", header_.file_bytes, " bytes: truncated or damaged"));
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(std::string_view tensor, const std::string& why) const {
    throw FileError(cat(file_.string(), ": tensor ", tensor, ": ", why));
  }

  void parse_metadata(const nlohmann::json& value) {
    if (!value.is_object()) throw FileError(cat(file_.string(), ": ", kMetadata, " must be an object; got ", value.type_name()));
    for (const auto& [key, text] : value.items()) header_.metadata[key] = json_string(text, cat(kMetadata, ".", key), file_);
  }

  void parse_tensor(const std::string& name, const nlohmann::json& value) {
    TensorPlace tensor;
    tensor.name = name;
    const std::string dtype = json_string(json_member(value, "dtype", file_), cat(name, ".dtype"), file_);
    const std::optional<Dtype> known = dtype_named(dtype);
    if (!known) refuse(name, cat("unknown dtype ", dtype));
    tensor.dtype = *known;

    const auto& shape = json_member(value, "shape", file_);
    if (!shape.is_array()) refuse(name, cat("shape must be an array; got ", shape.type_name()));
    int64_t bytes = dtype_bytes(tensor.dtype);
    for (const auto& extent : shape) {
      tensor.shape.push_back(json_count(extent, cat(name, ".shape"), file_));
      if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes)) refuse(name, cat("size of shape ", shape_text(tensor.shape), " overflows"));
    }

    const auto& offsets = json_member(value, "data_offsets", file_);
    if (!offsets.is_array() || offsets.size() != 2) refuse(name, "data_offsets must be two numbers");
    const int64_t begin = json_count(offsets[0], cat(name, ".data_offsets"), file_);
    const int64_t end = json_count(offsets[1], cat(name, ".data_offsets"), file_);
    const int64_t data_bytes = header_.file_bytes - header_.header_bytes;
    if (begin > end || end > data_bytes)
      refuse(name, cat("data_offsets [", begin, ", ", end, "] must lie within the file's ", data_bytes, " bytes of tensors"));
    if (end - begin != bytes)
      refuse(name, cat("data_offsets hold ", end - begin, " bytes, but shape ", shape_text(tensor.shape), " of ", dtype, " needs ", bytes));
    tensor.file_offset = header_.header_bytes + begin;
    header_.tensors.push_back(std::move(tensor));
  }

  const std::filesystem::path& file_;
  SafetensorsHeader header_;
};

}  // namespace

int64_t dtype_bytes(Dtype dtype) { return row_of(dtype).bytes; }
std::string_view dtype_name(Dtype dtype) { return row_of(dtype).name; }
std::optional<Dtype> dtype_named(std::string_view name) {
  const auto row = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeRow& known) { return known.name == name; });
  return row == kDtypes.end() ? std::nullopt : std::optional(row->dtype);
}

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape)
    OOM_CHECK(extent >= 0 && !__builtin_mul_overflow(product, extent, &product), "tensor ", name, " of shape ", shape_text(shape));
  return product;
}

int64_t TensorInfo::bytes() const {
  int64_t product = elements();
  OOM_CHECK(!__builtin_mul_overflow(product, dtype_bytes(dtype), &product), "tensor ", name, " of shape ", shape_text(shape));
  return product;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

int64_t header_text_bytes(std::span<const std::byte, 8> prefix, int64_t file_bytes, const std::filesystem::path& file) {
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  if (length < 2 || length > static_cast<uint64_t>(kLargestHeaderBytes) || length > static_cast<uint64_t>(file_bytes - 8))
    throw FileError(cat(file.string(), ": safetensors header of ", length, " bytes does not fit a file of ", file_bytes,
                        " bytes: truncated, damaged, or not a safetensors file"));
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_header(std::string_view text, int64_t file_bytes, const std::filesystem::path& file) {
  return HeaderParser(text, file_bytes, file).finish();
}

std::string format_header(std::span<const TensorInfo> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::json json = nlohmann::json::object();
  if (!metadata.empty()) json[kMetadata] = metadata;
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    OOM_CHECK(tensor.name != kMetadata && !json.contains(tensor.name), "tensor name ", tensor.name);
    json[tensor.name] = {{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  OOM_CHECK_LE(static_cast<int64_t>(text.size()), kLargestHeaderBytes);
  const uint64_t length = text.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + text;
}

SafetensorsHeader lay_out(std::span<const TensorInfo> tensors, const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  header.header_bytes = static_cast<int64_t>(format_header(tensors, metadata).size());
  int64_t offset = header.header_bytes;
  for (const TensorInfo& tensor : tensors) {
    header.tensors.push_back({tensor, offset});
    offset += tensor.bytes();
  }
  header.file_bytes = offset;
  return header;
}

}  // namespace oom::checkpoint
