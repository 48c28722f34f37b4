/// The header of a safetensors file: which tensors it holds, their types, shapes and places.
///
/// A file is: uint64 n, little-endian; n bytes of JSON {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...,
/// "__metadata__": {text: text}}, padded with spaces; the tensors, row-major, one after another without holes, in the order of their
/// offsets, to the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oom::checkpoint {

enum class Dtype { kBool, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kF64, kI64, kU64, kC64 };

int64_t dtype_bytes(Dtype dtype);
/// Returns the name used in headers: "BF16", "F32", ...
std::string_view dtype_name(Dtype dtype);
/// Returns the type of such a name, or nothing.
std::optional<Dtype> dtype_named(std::string_view name);

/// What a tensor is, wherever it lies.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;

  /// Product of the shape; 1 for a scalar. An Error when it does not fit 64 bits (shapes out of a parsed header always do).
  int64_t elements() const;
  int64_t bytes() const;
};

/// Returns "[2, 3]".
std::string shape_text(std::span<const int64_t> shape);

/// A tensor of a file.
struct TensorPlace : TensorInfo {
  int64_t file_offset = 0;  ///< of its first byte, from the beginning of the file
};

struct SafetensorsHeader {
  std::vector<TensorPlace> tensors;  ///< in the order of their places
  std::map<std::string, std::string> metadata;
  int64_t header_bytes = 0;  ///< everything before the first tensor
  int64_t file_bytes = 0;
};

inline constexpr int64_t kLargestHeaderBytes = 100'000'000;

/// Returns the length of the JSON text, from a file's first eight bytes; one that is absurd or beyond the file is a FileError.
int64_t header_text_bytes(std::span<const std::byte, 8> prefix, int64_t file_bytes, const std::filesystem::path& file);
/// Parses the JSON text. Trusts nothing: duplicates, wrong types, sizes that overflow, do not match shape and dtype, overlap, leave holes
/// or do not end where the file ends are FileErrors that name `file` and tensor.
SafetensorsHeader parse_header(std::string_view text, int64_t file_bytes, const std::filesystem::path& file);

/// Lays `tensors` one after another. Names must differ.
SafetensorsHeader lay_out(std::span<const TensorInfo> tensors, const std::map<std::string, std::string>& metadata);
/// Returns the first `header_bytes` of the file that lay_out described.
std::string format_header(std::span<const TensorInfo> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace oom::checkpoint
