#include "observe/crc32c.h"

#include <array>

namespace oom::observe {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value % 2 == 1 ? value / 2 ^ 0x82f63b78u : value / 2;
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~0u;
  for (const char byte : bytes) value = value >> 8 ^ kTable[(value ^ static_cast<uint8_t>(byte)) & 255];
  return ~value;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t value = crc32c(bytes);
  return (value >> 15 | value << 17) + 0xa282ead8u;
}

}  // namespace oom::observe
