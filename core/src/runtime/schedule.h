/// What a step has by its number, counted from 1: pure functions, so that resuming needs no state.
#pragma once

#include <functional>

#include "config/config.h"

namespace oom::runtime {

/// Warm-up: step k of w has k / w of the rate. Then constant; or cosine, from the rate down to the minimum at the last step; or wsd, constant and
/// falling linearly to the minimum over the last decay_steps.
double learning_rate(const config::Train& train, int64_t step);

/// Says of a step whether it counts tokens by expert, as [output] expert_load_every asks: the first, every n-th and the last. Empty when none does.
std::function<bool(int64_t step)> expert_load_steps(const config::Config& config);

}  // namespace oom::runtime
