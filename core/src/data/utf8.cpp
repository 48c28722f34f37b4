#include "data/utf8.h"

#include <cstring>

namespace oom::data {
namespace {

bool eight_ascii(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return (word & 0x8080808080808080) == 0;
}

}  // namespace

std::optional<int64_t> Utf8Checker::feed(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    while (remaining_ == 0 && bytes.size() - i > 8 && eight_ascii(bytes.data() + i)) {
      i += 8;
      offset_ += 8;
    }
    const auto byte = std::to_integer<uint8_t>(bytes[i]);
    if (remaining_ > 0) {
      if (byte < low_ || byte > high_) return character_begin_;
      low_ = 0x80;
      high_ = 0xBF;
      --remaining_;
    } else if (byte >= 0x80) {
      character_begin_ = offset_;
      // The second byte's range rules out overlong forms (E0, F0), surrogates (ED) and what lies above U+10FFFF (F4).
      if (byte >= 0xC2 && byte <= 0xDF) {
        remaining_ = 1;
      } else if (byte >= 0xE0 && byte <= 0xEF) {
        remaining_ = 2;
        if (byte == 0xE0) low_ = 0xA0;
        if (byte == 0xED) high_ = 0x9F;
      } else if (byte >= 0xF0 && byte <= 0xF4) {
        remaining_ = 3;
        if (byte == 0xF0) low_ = 0x90;
        if (byte == 0xF4) high_ = 0x8F;
      } else {
        return character_begin_;
      }
    }
    ++offset_;
  }
  return std::nullopt;
}

std::optional<int64_t> Utf8Checker::finish() const {
  if (remaining_ > 0) return character_begin_;
  return std::nullopt;
}

}  // namespace oom::data
