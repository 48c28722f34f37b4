/// BF16 as 16-bit patterns: widening, and the one rounding by which weights are published on every processor, GPU code included.
/// It differs from base/bfloat16.h, which reads and writes files, where hardware does: denormals are flushed, a NaN keeps its upper bits.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define OOM_HOST_DEVICE __host__ __device__
#else
#define OOM_HOST_DEVICE
#endif

namespace oom::optim {

OOM_HOST_DEVICE constexpr float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// Rounds to nearest, ties to even. Denormals become zero of their sign (as vcvtneps2bf16 does), NaN stays NaN (quiet).
OOM_HOST_DEVICE constexpr uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = bits & 0x7f800000u;
  const uint32_t mantissa = bits & 0x007fffffu;
  if (exponent == 0) return static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (exponent == 0x7f800000u && mantissa != 0) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace oom::optim
