#include "data/text_tokens.h"

#include <algorithm>
#include <system_error>

#include "base/file.h"
#include "base/text.h"
#include "data/utf8.h"
#include "oom/error.h"

namespace oom::data {
namespace {

bool hidden(const std::filesystem::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};  // opening it says what is wrong with it
  std::vector<std::filesystem::path> files;
  std::filesystem::recursive_directory_iterator entry(path, error);
  const std::filesystem::recursive_directory_iterator end;
  while (!error && entry != end) {
    if (hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      files.push_back(entry->path());
    }
    if (!error) entry.increment(error);
  }
  if (error) throw FileError(cat(path.string(), ": folder cannot be listed: ", error.message()));
  if (files.empty()) throw FileError(cat(path.string(), ": folder has no files (names that begin with a dot are passed over)"));
  std::sort(files.begin(), files.end(), [](const auto& left, const auto& right) { return left.native() < right.native(); });
  return files;
}

void check_utf8(const base::File& file) {
  Utf8Checker checker;
  std::vector<std::byte> piece(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), 1 << 20)));
  std::optional<int64_t> bad;
  for (int64_t offset = 0; offset < file.size_bytes() && !bad;) {
    const auto bytes = std::span(piece).first(static_cast<size_t>(std::min<int64_t>(file.size_bytes() - offset, 1 << 20)));
    file.read_at(offset, bytes);
    bad = checker.feed(bytes);
    offset += static_cast<int64_t>(bytes.size());
  }
  if (!bad) bad = checker.finish();
  if (bad) throw FileError(cat(file.path().string(), ": is not UTF-8 from byte ", *bad, " on; convert the file, or make token files of it"));
}

}  // namespace

TextTokens::TextTokens(const std::filesystem::path& path, int64_t vocabulary) : path_(path), files_(files_of(path)) {
  if (vocabulary < 256)
    throw FileError(cat(path.string(), ": text is read as byte tokens, which need a vocabulary of at least 256; the model's has ", vocabulary));
  for (const auto& name : files_) {
    const base::File file = base::File::open(name);
    check_utf8(file);
    begins_.push_back(begins_.back() + file.size_bytes());
  }
}

void TextTokens::read(int64_t begin, std::span<int32_t> tokens) const {
  const int64_t count = static_cast<int64_t>(tokens.size());
  OOM_CHECK(begin >= 0 && count <= token_count() - begin, "tokens [", begin, ", ", begin + count, ") of ", token_count());
  std::vector<std::byte> raw;
  while (!tokens.empty()) {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
    const auto index = static_cast<size_t>(after - begins_.begin() - 1);
    raw.resize(std::min(tokens.size(), static_cast<size_t>(*after - begin)));
    // Opened for each read: a folder may hold more files than a process may keep open.
    base::File::open(files_[index]).read_at(begin - begins_[index], raw);
    std::transform(raw.begin(), raw.end(), tokens.begin(), [](std::byte byte) { return std::to_integer<int32_t>(byte); });
    begin += static_cast<int64_t>(raw.size());
    tokens = tokens.subspan(raw.size());
  }
}

std::vector<int64_t> TextTokens::document_begins(int64_t begin, int64_t end) const {
  std::vector<int64_t> positions;
  for (auto at = std::lower_bound(begins_.begin(), begins_.end() - 1, begin); at != begins_.end() - 1 && *at < end; ++at)
    if (positions.empty() || positions.back() != *at) positions.push_back(*at);
  return positions;
}

std::string TextTokens::description() const {
  return cat(path_.string(), ": ", base::group_digits(token_count()), " byte tokens in ", base::group_digits(document_count()), " documents");
}

}  // namespace oom::data
