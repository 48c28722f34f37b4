#include "data/megatron_tokens.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "oom/error.h"

namespace oom::data {
namespace {

std::filesystem::path with_suffix(std::filesystem::path prefix, const char* suffix) {
  prefix += suffix;
  return prefix;
}

// The index has no padding, so nothing in it is aligned.
template <typename T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct OutsideVocabulary {
  size_t index;
  int64_t value;
};

template <typename T>
std::optional<OutsideVocabulary> convert(std::span<const std::byte> bytes, int64_t vocabulary, std::span<int32_t> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    T raw;
    std::memcpy(&raw, bytes.data() + i * sizeof(T), sizeof(T));
    const int64_t value = static_cast<int64_t>(raw);
    if (value < 0 || value >= vocabulary) return OutsideVocabulary{i, value};
    tokens[i] = static_cast<int32_t>(value);
  }
  return std::nullopt;
}

std::optional<OutsideVocabulary> convert(MegatronType type, std::span<const std::byte> bytes, int64_t vocabulary,
                                         std::span<int32_t> tokens) {
  switch (type) {
    case MegatronType::kUint8: return convert<uint8_t>(bytes, vocabulary, tokens);
    case MegatronType::kInt8: return convert<int8_t>(bytes, vocabulary, tokens);
    case MegatronType::kInt16: return convert<int16_t>(bytes, vocabulary, tokens);
    case MegatronType::kInt32: return convert<int32_t>(bytes, vocabulary, tokens);
    case MegatronType::kInt64: return convert<int64_t>(bytes, vocabulary, tokens);
    case MegatronType::kUint16: return convert<uint16_t>(bytes, vocabulary, tokens);
  }
  OOM_CHECK(false, "token type ", static_cast<int>(type));
  return std::nullopt;
}

}  // namespace

int64_t megatron_type_bytes(MegatronType type) {
  switch (type) {
    case MegatronType::kUint8:
    case MegatronType::kInt8: return 1;
    case MegatronType::kInt16:
    case MegatronType::kUint16: return 2;
    case MegatronType::kInt32: return 4;
    case MegatronType::kInt64: return 8;
  }
  return 0;
}

std::string_view megatron_type_name(MegatronType type) {
  switch (type) {
    case MegatronType::kUint8: return "uint8";
    case MegatronType::kInt8: return "int8";
    case MegatronType::kInt16: return "int16";
    case MegatronType::kInt32: return "int32";
    case MegatronType::kInt64: return "int64";
    case MegatronType::kUint16: return "uint16";
  }
  return "unknown";
}

std::filesystem::path megatron_prefix(std::filesystem::path path) {
  if (path.extension() == ".bin" || path.extension() == ".idx") path.replace_extension();
  return path;
}

MegatronTokens::MegatronTokens(const std::filesystem::path& prefix, int64_t vocabulary)
    : prefix_(megatron_prefix(prefix)),
      vocabulary_(std::min<int64_t>(vocabulary, int64_t{1} << 31)),
      index_(with_suffix(prefix_, ".idx")),
      tokens_(base::File::open(with_suffix(prefix_, ".bin"))) {
  OOM_CHECK_GT(vocabulary, 0);
  check_header();
  check_sequences();
  check_documents();
}

void MegatronTokens::refuse(const std::string& why) const { throw FileError(cat(index_.path().string(), ": ", why)); }

void MegatronTokens::check_header() {
  const auto bytes = index_.bytes();
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size < kMegatronHeaderBytes) refuse(cat("too short for an index: ", size, " bytes, its header alone has ", kMegatronHeaderBytes));
  if (std::memcmp(bytes.data(), kMegatronMagic.data(), kMegatronMagic.size()) != 0)
    refuse("does not begin with MMIDIDX: not an index of this format");
  const auto version = load<uint64_t>(bytes, 9);
  if (version != 1) refuse(cat("index version must be 1; got ", version));
  const auto code = load<uint8_t>(bytes, 17);
  type_ = static_cast<MegatronType>(code);
  type_bytes_ = megatron_type_bytes(type_);
  if (type_bytes_ == 0) refuse(cat("token type must be an integer type (codes 1 to 5 and 8); got code ", int{code}));

  const auto sequences = load<uint64_t>(bytes, 18);
  const auto entries = load<uint64_t>(bytes, 26);
  const uint64_t room = static_cast<uint64_t>(size - kMegatronHeaderBytes);
  // Compared by division first: the counts may be anything, and their products may overflow.
  if (sequences > room / 12 || entries > room / 8 || sequences * 12 + entries * 8 != room)
    refuse(cat("header says ", sequences, " sequences and ", entries, " document entries, which does not match the file's ", size,
               " bytes: truncated, damaged, or an index with sequence modes (multimodal), which are not supported"));
  if (entries == 0) refuse("has no document entries; the first must be 0 and the last the number of sequences");
  sequence_count_ = static_cast<int64_t>(sequences);
  document_entries_ = static_cast<int64_t>(entries);
}

void MegatronTokens::check_sequences() {
  const int64_t bin_bytes = tokens_.size_bytes();
  bool contiguous = true;
  int64_t total = 0;
  for (int64_t i = 0; i < sequence_count_; ++i) {
    const int64_t tokens = length(i);
    const int64_t begin = pointer(i);
    if (tokens < 0) refuse(cat("sequence ", i, " has a negative length: ", tokens));
    if (begin < 0 || begin > bin_bytes || tokens * type_bytes_ > bin_bytes - begin)
      refuse(cat("sequence ", i, " (", tokens, " tokens from byte ", begin, ") lies outside ", tokens_.path().string(), " of ", bin_bytes,
                 " bytes: the files do not belong together, or one is truncated"));
    contiguous = contiguous && begin == total * type_bytes_;
    total += tokens;
  }
  token_count_ = total;
  if (contiguous) {
    if (total * type_bytes_ != bin_bytes)
      refuse(cat("describes ", total, " tokens of ", type_bytes_, " bytes, but ", tokens_.path().string(), " has ", bin_bytes,
                 " bytes: the files do not belong together, or one is truncated"));
    return;
  }
  sequence_begins_.reserve(static_cast<size_t>(sequence_count_) + 1);
  sequence_begins_.push_back(0);
  for (int64_t i = 0; i < sequence_count_; ++i) sequence_begins_.push_back(sequence_begins_.back() + length(i));
}

void MegatronTokens::check_documents() const {
  if (document(0) != 0) refuse(cat("first document entry must be 0; got ", document(0)));
  for (int64_t i = 1; i < document_entries_; ++i)
    if (document(i) < document(i - 1) || document(i) > sequence_count_)
      refuse(cat("document entry ", i, " must lie between the one before it (", document(i - 1), ") and the number of sequences (",
                 sequence_count_, "); got ", document(i)));
  if (document(document_entries_ - 1) != sequence_count_)
    refuse(cat("last document entry must be the number of sequences (", sequence_count_, "); got ", document(document_entries_ - 1),
               ": was the last document ended when the file was made?"));
}

int32_t MegatronTokens::length(int64_t sequence) const { return load<int32_t>(index_.bytes(), kMegatronHeaderBytes + 4 * sequence); }

int64_t MegatronTokens::pointer(int64_t sequence) const {
  return load<int64_t>(index_.bytes(), kMegatronHeaderBytes + 4 * sequence_count_ + 8 * sequence);
}

int64_t MegatronTokens::document(int64_t entry) const {
  return load<int64_t>(index_.bytes(), kMegatronHeaderBytes + 12 * sequence_count_ + 8 * entry);
}

int64_t MegatronTokens::sequence_begin(int64_t sequence) const {
  if (!sequence_begins_.empty()) return sequence_begins_[static_cast<size_t>(sequence)];
  return sequence == sequence_count_ ? token_count_ : pointer(sequence) / type_bytes_;
}

void MegatronTokens::read(int64_t begin, std::span<int32_t> tokens) const {
  const int64_t count = static_cast<int64_t>(tokens.size());
  OOM_CHECK(begin >= 0 && count <= token_count_ - begin, "tokens [", begin, ", ", begin + count, ") of ", token_count_);
  if (sequence_begins_.empty()) {
    read_run(begin * type_bytes_, begin, tokens);
    return;
  }
  auto next = std::upper_bound(sequence_begins_.begin(), sequence_begins_.end(), begin);
  while (!tokens.empty()) {
    const int64_t sequence = next - sequence_begins_.begin() - 1;
    const int64_t inside = begin - sequence_begins_[static_cast<size_t>(sequence)];
    const size_t run = std::min(tokens.size(), static_cast<size_t>(length(sequence) - inside));
    read_run(pointer(sequence) + inside * type_bytes_, begin, tokens.first(run));
    begin += static_cast<int64_t>(run);
    tokens = tokens.subspan(run);
    ++next;
  }
}

void MegatronTokens::read_run(int64_t byte, int64_t begin, std::span<int32_t> tokens) const {
  if (tokens.empty()) return;
  std::vector<std::byte> raw(tokens.size() * static_cast<size_t>(type_bytes_));
  tokens_.read_at(byte, raw);
  if (const auto bad = convert(type_, raw, vocabulary_, tokens))
    throw FileError(cat(tokens_.path().string(), ": token ", begin + static_cast<int64_t>(bad->index), " (byte ",
                        byte + static_cast<int64_t>(bad->index) * type_bytes_, ") is outside the model's vocabulary of ", vocabulary_,
                        "; got ", bad->value, ". Was the file made with this model's tokenizer?"));
}

std::vector<int64_t> MegatronTokens::document_begins(int64_t begin, int64_t end) const {
  int64_t low = 0;
  int64_t high = document_count();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (sequence_begin(document(middle)) < begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  std::vector<int64_t> begins;
  for (int64_t entry = low; entry < document_count(); ++entry) {
    const int64_t position = sequence_begin(document(entry));
    if (position >= end) break;
    if (begins.empty() || begins.back() != position) begins.push_back(position);  // an empty document begins where the next does
  }
  return begins;
}

std::string MegatronTokens::description() const {
  return cat(prefix_.string(), ": ", base::group_digits(token_count_), " tokens (", megatron_type_name(type_), ") in ",
             base::group_digits(document_count()), " documents");
}

}  // namespace oom::data
