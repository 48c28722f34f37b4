/// Initial weights of `weights = "random"`: a generator for each tensor, from the seed and the tensor's name, so that they depend neither on ranks
/// nor on the plan.
#pragma once

#include <cstdint>
#include <span>

#include "oom/model.h"

namespace oom::runtime {

/// Fills `out` with elements [first, first + out.size()) of a parameter. Any element is computed on its own: element i of a normal tensor is the
/// Box-Muller transform of two counter-based uniforms.
void random_weights(const ParameterSpec& parameter, uint64_t seed, int64_t first, std::span<float> out);

}  // namespace oom::runtime
