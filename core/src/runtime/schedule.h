/// The learning rate of a step, counted from 1: a pure function, so that resuming needs no state.
#pragma once

#include "config/config.h"

namespace oom::runtime {

/// Warm-up: step k of w has k / w of the rate. Then constant; or cosine, from the rate down to the minimum at the last step; or wsd, constant and
/// falling linearly to the minimum over the last decay_steps.
double learning_rate(const config::Train& train, int64_t step);

}  // namespace oom::runtime
