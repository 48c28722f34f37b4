/// Token files in Megatron's indexed format: PREFIX.bin holds the tokens, PREFIX.idx says where sequences and documents lie.
///
/// The index, little-endian and without padding:
///   9 bytes "MMIDIDX\0\0", uint64 version (1), uint8 token type, uint64 sequences n, uint64 document entries d,
///   int32 length[n] in tokens, int64 pointer[n] in bytes of the .bin, int64 document[d]: the sequence at which a document begins;
///   the first entry is 0, the last is n (so there are d - 1 documents).
/// The stream is the sequences in the order of the index. Everything is checked when opened, except the tokens' values, which are
/// checked when read.
#pragma once

#include <optional>
#include <string_view>

#include "base/file.h"
#include "data/token_source.h"

namespace oom::data {

/// Token types by their code in the index. 6 and 7 are floating point and hold no tokens.
enum class MegatronType : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;

int64_t megatron_type_bytes(MegatronType type);
std::string_view megatron_type_name(MegatronType type);
/// The prefix that a path to its .bin or .idx means.
std::filesystem::path megatron_prefix(std::filesystem::path path);

class MegatronTokens final : public TokenSource {
 public:
  /// Opens PREFIX.idx and PREFIX.bin; a prefix that ends in .bin or .idx is accepted too. Throws FileError.
  MegatronTokens(const std::filesystem::path& prefix, int64_t vocabulary);

  int64_t token_count() const override { return token_count_; }
  void read(int64_t begin, std::span<int32_t> tokens) const override;
  int64_t document_count() const override { return document_entries_ - 1; }
  std::vector<int64_t> document_begins(int64_t begin, int64_t end) const override;
  std::string description() const override;

 private:
  void check_header();
  void check_sequences();
  void check_documents() const;
  [[noreturn]] void refuse(const std::string& why) const;
  int32_t length(int64_t sequence) const;
  int64_t pointer(int64_t sequence) const;
  int64_t document(int64_t entry) const;
  /// Position in the stream at which a sequence begins; `sequence` may be the number of sequences.
  int64_t sequence_begin(int64_t sequence) const;
  void read_run(int64_t byte, int64_t begin, std::span<int32_t> tokens) const;

  std::filesystem::path prefix_;
  int64_t vocabulary_;
  base::MappedFile index_;
  base::File tokens_;
  MegatronType type_ = MegatronType::kUint16;
  int64_t type_bytes_ = 2;
  int64_t sequence_count_ = 0;
  int64_t document_entries_ = 0;
  int64_t token_count_ = 0;
  // Filled only when sequences do not lie one after another in the .bin: where each begins in the stream, and the end.
  std::vector<int64_t> sequence_begins_;
};

}  // namespace oom::data
