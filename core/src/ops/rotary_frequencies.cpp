#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "oom/ops/rotary.h"

namespace oom::ops {
namespace {

/// theta^(2i / denominator) for i < count, in the same FP32 operations as Hugging Face, so that angles agree far into a long sequence.
at::Tensor powers(double theta, int64_t count, int64_t denominator) {
  const at::Tensor exponent = at::arange(0, 2 * count, 2, at::TensorOptions().dtype(at::kFloat)).div(static_cast<double>(denominator));
  return at::pow(at::Scalar(theta), exponent);
}

/// 1 where a frequency turns often enough within the original context to stay as it is, 0 where it is stretched, a ramp between.
at::Tensor yarn_kept_share(const RotarySettings& settings, int64_t rotary_dim) {
  const auto dimension_of = [&](double turns) {
    return static_cast<double>(rotary_dim) * std::log(static_cast<double>(settings.original_length) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(settings.theta));
  };
  const double low = std::max(std::floor(dimension_of(settings.beta_fast)), 0.0);
  double high = std::min(std::ceil(dimension_of(settings.beta_slow)), static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor index = at::arange(0, rotary_dim / 2, at::TensorOptions().dtype(at::kFloat));
  return index.sub(low).div(high - low).clamp(0, 1).neg().add(1);
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotarySettings& settings) {
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) throw ConfigError("rotary embedding: " + message);
  };
  require(settings.head_dim > 0 && settings.head_dim % 2 == 0, cat("head_dim must be even and positive; got ", settings.head_dim));
  require(settings.theta > 1, cat("theta must be above 1; got ", settings.theta));
  require(settings.partial_factor > 0 && settings.partial_factor <= 1, cat("partial factor must be in (0, 1]; got ", settings.partial_factor));
  require(settings.factor > 0, cat("factor must be positive; got ", settings.factor));
  const double rotated = static_cast<double>(settings.head_dim) * settings.partial_factor;
  if (settings.kind == RotaryKind::kProportional) {
    const int64_t count = static_cast<int64_t>(rotated / 2);
    const at::Tensor turning = powers(settings.theta, count, settings.head_dim).reciprocal();
    const at::Tensor still = at::zeros({settings.head_dim / 2 - count}, at::TensorOptions().dtype(at::kFloat));
    return {at::cat({turning, still}).div(settings.factor), 1.0};
  }
  const int64_t rotary_dim = static_cast<int64_t>(rotated);
  require(rotary_dim > 0 && rotary_dim % 2 == 0, cat("an even number of dimensions must turn; got ", rotary_dim, " of ", settings.head_dim));
  const at::Tensor power = powers(settings.theta, rotary_dim / 2, rotary_dim);
  if (settings.kind == RotaryKind::kDefault) return {power.reciprocal(), 1.0};
  require(settings.original_length > 0, cat("YaRN needs the original context length; got ", settings.original_length));
  const at::Tensor kept = yarn_kept_share(settings, rotary_dim);
  const at::Tensor stretched = power.mul(settings.factor).reciprocal();
  const double scaling = settings.factor > 1 ? 0.1 * std::log(settings.factor) + 1.0 : 1.0;
  return {stretched.mul(kept.neg().add(1)).add(power.reciprocal().mul(kept)), scaling};
}

}  // namespace oom::ops
