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
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const int64_t index = first + i;
    const uint64_t bits = mix(key ^ static_cast<uint64_t>(index >> 1));
    const float left = uniform(static_cast<uint32_t>(bits)), right = uniform(static_cast<uint32_t>(bits >> 32));
    if (parameter.init.kind == Initialisation::Kind::kUniformLog) {
      out[i] = std::log(0.01f + 15.99f * (index & 1 ? right : left));
      continue;
    }
    const float radius = std::sqrt(-2.0f * std::log(left)), angle = 6.2831853f * right;
    out[i] = value * radius * (index & 1 ? std::sin(angle) : std::cos(angle));
  }
}

}  // namespace oom::runtime
