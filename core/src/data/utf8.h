/// Checks UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF) piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace oom::data {

class Utf8Checker {
 public:
  /// Takes the next bytes of a text. Returns the offset, from the text's start, of the first character that is not UTF-8.
  std::optional<int64_t> feed(std::span<const std::byte> bytes);
  /// Ends the text. Returns the offset of a last character that is cut short.
  std::optional<int64_t> finish() const;

 private:
  int64_t offset_ = 0;           // bytes taken so far
  int64_t character_begin_ = 0;  // of the character being read
  int remaining_ = 0;            // continuation bytes it still needs
  uint8_t low_ = 0x80;           // range of the next continuation byte
  uint8_t high_ = 0xBF;
};

}  // namespace oom::data
