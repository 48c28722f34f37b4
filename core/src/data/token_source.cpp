#include "data/token_source.h"

#include "data/megatron_tokens.h"
#include "data/text_tokens.h"
#include "oom/error.h"

namespace oom::data {

TokenSource::~TokenSource() = default;

std::unique_ptr<TokenSource> open_token_source(const std::string& format, const std::filesystem::path& path, int64_t vocabulary) {
  if (format == "megatron") return std::make_unique<MegatronTokens>(path, vocabulary);
  if (format == "text") return std::make_unique<TextTokens>(path, vocabulary);
  throw ConfigError(cat("data.format: unknown format; got ", format, "; formats: megatron, text"));
}

}  // namespace oom::data
