/// Makes token files in Megatron's indexed format (megatron_tokens.h). One thread; memory grows by 12 bytes a sequence.
#pragma once

#include "data/megatron_tokens.h"

namespace oom::data {

class MegatronWriter {
 public:
  /// Makes PREFIX.bin, which must not exist. kUint16 holds tokens up to 65535.
  MegatronWriter(const std::filesystem::path& prefix, MegatronType type);
  /// Appends a sequence to the document that is open. A token that the type cannot hold is a FileError.
  void append_sequence(std::span<const int32_t> tokens);
  void end_document();
  /// Ends a document that is still open and writes PREFIX.idx. Without this call the .bin is left without an index.
  void finish();

 private:
  std::filesystem::path prefix_;
  MegatronType type_;
  base::File tokens_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
};

}  // namespace oom::data
