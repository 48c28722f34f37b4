#include "runtime/random_weights.h"

#include <cmath>
#include <string_view>

namespace oom::runtime {
namespace {

// splitmix64's finaliser: every output bit depends on every input bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t key_of(std::string_view name, uint64_t seed) {
  uint64_t key = mix(seed);
  for (const char letter : name) key = mix(key ^ static_cast<unsigned char>(letter));
  return key;
}

// In (0, 1]: its logarithm is finite.
float uniform(uint32_t bits) { return (static_cast<float>(bits >> 8) + 1.0f) * 0x1p-24f; }

}  // namespace

void random_weights(const ParameterSpec& parameter, uint64_t seed, int64_t first, std::span<float> out) {
  const uint64_t key = key_of(parameter.name, seed);
  const float value = static_cast<float>(parameter.init.value);
  if (parameter.init.kind == Initialisation::Kind::kConstant) {
    for (float& element : out) element = value;
    return;
  }
  // Two elements share their random bits, and most of the arithmetic.
  const int64_t count = static_cast<int64_t>(out.size());
  for (int64_t i = 0; i < count;) {
    const int64_t index = first + i;
    const uint64_t bits = mix(key ^ static_cast<uint64_t>(index >> 1));
    const float left = uniform(static_cast<uint32_t>(bits)), right = uniform(static_cast<uint32_t>(bits >> 32));
    float both[2];
    if (parameter.init.kind == Initialisation::Kind::kUniformLog) {
      both[0] = std::log(0.01f + 15.99f * left);
      both[1] = std::log(0.01f + 15.99f * right);
    } else {
      const float radius = value * std::sqrt(-2.0f * std::log(left)), angle = 6.2831853f * right;
      both[0] = radius * std::cos(angle);
      both[1] = radius * std::sin(angle);
    }
    for (int64_t half = index & 1; half < 2 && i < count; ++half) out[i++] = both[half];
  }
}

}  // namespace oom::runtime
