/// UTF-8 text as byte tokens 0 to 255: a file, or every file of a folder and its sub-folders in the order of their paths (compared byte
/// by byte), each a document. Names that begin with a dot are passed over. Nothing is put between documents.
#pragma once

#include "data/token_source.h"

namespace oom::data {

class TextTokens final : public TokenSource {
 public:
  /// Reads every file once to check it. Throws FileError: no file, invalid UTF-8 (file and offset), vocabulary below 256.
  TextTokens(const std::filesystem::path& path, int64_t vocabulary);

  int64_t token_count() const override { return begins_.back(); }
  void read(int64_t begin, std::span<int32_t> tokens) const override;
  int64_t document_count() const override { return static_cast<int64_t>(files_.size()); }
  std::vector<int64_t> document_begins(int64_t begin, int64_t end) const override;
  std::string description() const override;

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> begins_{0};  // where each file begins in the stream, and the end
};

}  // namespace oom::data
