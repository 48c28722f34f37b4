/// CRC-32C (Castagnoli), as RFC 3720 defines it: what TensorBoard's files are checked with.
#pragma once

#include <cstdint>
#include <string_view>

namespace oom::observe {

uint32_t crc32c(std::string_view bytes);
/// The form in which a checksum is stored beside the data it is of.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace oom::observe
