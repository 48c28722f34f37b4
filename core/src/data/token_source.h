/// One long stream of tokens, whatever the files behind it, and where its documents begin.
/// A source is immutable after opening; every method is const and safe from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace oom::data {

class TokenSource {
 public:
  virtual ~TokenSource();

  /// Tokens of the whole stream.
  virtual int64_t token_count() const = 0;
  /// Fills `tokens` with the tokens from `begin` on. Throws FileError, naming file and position, for a token outside the vocabulary.
  /// The range must lie within the stream.
  virtual void read(int64_t begin, std::span<int32_t> tokens) const = 0;
  /// Documents of the stream, empty ones included.
  virtual int64_t document_count() const = 0;
  /// Returns, ascending and each once, the positions in [begin, end) at which a document begins.
  virtual std::vector<int64_t> document_begins(int64_t begin, int64_t end) const = 0;
  /// Names the files and sizes, for logs: "data/corpus: 1,234 tokens (uint16) in 12 documents".
  virtual std::string description() const = 0;
};

/// Opens `path` in `format`: "megatron" (the prefix of a .bin and an .idx file) or "text" (a UTF-8 file or a folder of them).
/// `vocabulary` is the model's number of token ids. An unknown format is a ConfigError, whatever is wrong with files a FileError.
std::unique_ptr<TokenSource> open_token_source(const std::string& format, const std::filesystem::path& path, int64_t vocabulary);

}  // namespace oom::data
