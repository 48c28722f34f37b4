/// The inner loops of AdamW, one set for each instruction set; private to core/src/optim.
/// An update and the publishing of its weights are two loops over a block: the masters are still in the first-level cache in between.
#pragma once

#include <cmath>
#include <cstdint>

#include "optim/adamw.h"
#include "optim/bf16.h"

namespace oom::optim {

/// Lanes in which a block's sum of squares is taken: element i of a block goes to lane i % kLanes.
inline constexpr int kLanes = 16;

/// A run of elements inside one block.
struct Run {
  float* m;  ///< of the block's element 0, as v and w
  float* v;
  float* w;
  int64_t shard_offset;  ///< the shard's index of the block's element 0
  int begin, end;        ///< within the block
  const void* const* partials;
  int partial_count;
  float gradient_scale;
  void* publish;  ///< of the shard's element 0
};

using UpdateKernel = void (*)(const Run& run, const AdamWConstants& constants, double* lanes);
/// Reads run.partials only.
using StatsKernel = void (*)(const Run& run, double* lanes);
/// Reads run.w, writes run.publish.
using PublishKernel = void (*)(const Run& run);

/// Indexed by ElementType.
struct KernelSet {
  UpdateKernel update[2];
  StatsKernel stats[2];
  PublishKernel publish[2];
};

extern const KernelSet kPortableKernels;
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
extern const KernelSet kAvx512Bf16Kernels;

// One element in portable C++: the written order itself, and the heads and tails of the vector kernels.

template <ElementType kGradient>
inline float scaled_gradient(const Run& run, int64_t index) {
  const auto widen = [&](int partial) {
    if constexpr (kGradient == ElementType::kBF16)
      return float_from_bf16(static_cast<const uint16_t*>(run.partials[partial])[index]);
    else
      return static_cast<const float*>(run.partials[partial])[index];
  };
  float sum = widen(0);
  for (int partial = 1; partial < run.partial_count; ++partial) sum += widen(partial);
  return sum * run.gradient_scale;
}

template <ElementType kGradient>
inline void update_element(const Run& run, const AdamWConstants& c, int i, double* lanes) {
  const float g = scaled_gradient<kGradient>(run, run.shard_offset + i);
  lanes[i % kLanes] += static_cast<double>(g) * static_cast<double>(g);
  const float w = std::fma(c.decay, run.w[i], run.w[i]);
  const float m = std::fma(c.one_minus_beta1, g - run.m[i], run.m[i]);
  const float v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * run.v[i]);
  const float d = std::fma(std::sqrt(v), c.inverse_root_correction2, c.eps);
  run.m[i] = m;
  run.v[i] = v;
  run.w[i] = std::fma(c.rate, m / d, w);
}

template <ElementType kGradient>
inline void stats_element(const Run& run, int i, double* lanes) {
  const float g = scaled_gradient<kGradient>(run, run.shard_offset + i);
  lanes[i % kLanes] += static_cast<double>(g) * static_cast<double>(g);
}

template <ElementType kPublish>
inline void publish_element(const Run& run, int i) {
  if constexpr (kPublish == ElementType::kBF16)
    static_cast<uint16_t*>(run.publish)[run.shard_offset + i] = bf16_from_float(run.w[i]);
  else
    static_cast<float*>(run.publish)[run.shard_offset + i] = run.w[i];
}

}  // namespace oom::optim
