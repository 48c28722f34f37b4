#include "runtime/schedule.h"

#include <cmath>
#include <numbers>

namespace oom::runtime {

double learning_rate(const config::Train& train, int64_t step) {
  const double peak = train.learning_rate, low = train.min_learning_rate;
  if (step <= train.warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(train.warmup_steps);
  if (train.schedule == config::Schedule::kCosine && train.steps > train.warmup_steps) {
    const double progress = static_cast<double>(step - train.warmup_steps) / static_cast<double>(train.steps - train.warmup_steps);
    return low + (peak - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  const int64_t decay_begin = train.steps - train.decay_steps;
  if (train.schedule == config::Schedule::kWsd && step > decay_begin) {
    return peak + (low - peak) * static_cast<double>(step - decay_begin) / static_cast<double>(train.decay_steps);
  }
  return peak;
}

std::function<bool(int64_t step)> expert_load_steps(const config::Config& config) {
  const int64_t every = config.output().expert_load_every, last = config.train().steps;
  if (every == 0) return {};
  return [every, last](int64_t step) { return step == 1 || step == last || step % every == 0; };
}

}  // namespace oom::runtime
