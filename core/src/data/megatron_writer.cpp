#include "data/megatron_writer.h"

#include <cstring>
#include <limits>

#include "oom/error.h"

namespace oom::data {
namespace {

std::filesystem::path with_suffix(std::filesystem::path prefix, const char* suffix) {
  prefix += suffix;
  return prefix;
}

int64_t largest_token(MegatronType type) {
  switch (type) {
    case MegatronType::kUint8: return std::numeric_limits<uint8_t>::max();
    case MegatronType::kInt8: return std::numeric_limits<int8_t>::max();
    case MegatronType::kInt16: return std::numeric_limits<int16_t>::max();
    case MegatronType::kUint16: return std::numeric_limits<uint16_t>::max();
    default: return std::numeric_limits<int32_t>::max();
  }
}

template <typename T>
void put(std::string& out, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  out.append(raw, sizeof(T));
}

}  // namespace

MegatronWriter::MegatronWriter(const std::filesystem::path& prefix, MegatronType type)
    : prefix_(prefix), type_(type), tokens_(base::File::create(with_suffix(prefix, ".bin"))) {}

void MegatronWriter::append_sequence(std::span<const int32_t> tokens) {
  const auto width = static_cast<size_t>(megatron_type_bytes(type_));
  const int64_t largest = largest_token(type_);
  std::vector<std::byte> raw(tokens.size() * width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t value = tokens[i];
    if (value < 0 || value > largest)
      throw FileError(cat(tokens_.path().string(), ": token ", value, " does not fit ", megatron_type_name(type_), " (0 to ", largest, ")"));
    std::memcpy(raw.data() + i * width, &value, width);  // little-endian: the low bytes come first
  }
  tokens_.append(raw);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
}

void MegatronWriter::end_document() { documents_.push_back(static_cast<int64_t>(lengths_.size())); }

void MegatronWriter::finish() {
  if (documents_.back() != static_cast<int64_t>(lengths_.size())) end_document();
  std::string index(kMegatronMagic);
  put<uint64_t>(index, 1);
  put<uint8_t>(index, static_cast<uint8_t>(type_));
  put<uint64_t>(index, lengths_.size());
  put<uint64_t>(index, documents_.size());
  for (const int32_t length : lengths_) put(index, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    put(index, pointer);
    pointer += length * megatron_type_bytes(type_);
  }
  for (const int64_t document : documents_) put(index, document);
  tokens_.sync();
  base::write_text_file(with_suffix(prefix_, ".idx"), index);
}

}  // namespace oom::data
