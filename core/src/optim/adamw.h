/// AdamW over state blocks (optim/state_blocks.h) on the host.
///
/// The written order. Host kernels of every instruction set and the CUDA kernels (optim/adamw_cuda.h) do exactly these IEEE single
/// precision operations, each rounded to nearest even once; fma(a, b, c) = a b + c with one rounding. t counts steps from 1.
///
///   constants, in double, each rounded to float once per step:
///     decay = -lr wd,  c1 = 1 - b1,  b2,  c2 = 1 - b2,  r = 1 / sqrt(1 - b2^t),  eps,  rate = -lr / (1 - b1^t)
///   per element:
///     g = (((p0 + p1) + p2) + ...) * gradient_scale      partials widened to float, in rank order
///     w = fma(decay, w, w)                               decoupled decay comes first
///     m = fma(c1, g - m, m)                              the interpolation m + (1 - b1)(g - m)
///     v = fma(c2 * g, g, b2 * v)
///     d = fma(sqrt(v), r, eps)                           eps is added after the corrected root
///     w = fma(rate, m / d, w)
///
/// This is LibTorch's AdamW up to rounding. Denormal operands and results count as zero (FTZ and DAZ are set inside, and restored).
/// The published weight is w rounded to BF16 (optim/bf16.h), or w itself. The sum of squares of g is taken in double: lane i mod 16 of
/// each block in element order, lanes, blocks and work items of 16 blocks then in order; it depends on neither instruction set nor
/// thread count, and it is finite if and only if every g is.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "optim/cpu_isa.h"
#include "optim/state_blocks.h"

namespace oom::memory {
class WorkerPool;
}

namespace oom::optim {

enum class ElementType : int { kBF16 = 0, kFP32 = 1 };
constexpr int64_t element_bytes(ElementType type) { return type == ElementType::kBF16 ? 2 : 4; }

struct AdamWStep {
  double learning_rate = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  int64_t step = 1;  ///< of this shard: 1 at its first update
};

/// The constants of the written order.
struct AdamWConstants {
  float decay, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2, eps, rate;
};
/// Throws Error when step < 1 or a beta is outside [0, 1).
AdamWConstants adamw_constants(const AdamWStep& step);

/// A weight's or gradient's array for a whole shard: `data` is the address of element 0, not of the range worked on.
struct Gradients {
  ElementType type = ElementType::kBF16;
  std::span<const void* const> partials;  ///< one a rank, at least one
};
struct Publish {
  ElementType type = ElementType::kBF16;
  void* data = nullptr;  ///< null: nothing is published; 64-byte aligned: stored past the caches
};

struct AdamWJob {
  StateBlocks state;
  Gradients gradients;
  float gradient_scale = 1.0f;
  AdamWStep step;
  std::span<const ElementRange> without_decay;  ///< ascending, disjoint: weight_decay counts as 0 there
  Publish publish;
};

struct GradientStats {
  double sum_of_squares = 0.0;  ///< of the scaled gradient
  bool finite() const { return std::isfinite(sum_of_squares); }
};

/// Updates elements [begin, end) of the shard on the calling thread, in one pass. State is changed even where gradients are not finite:
/// who must not let that happen asks gradient_stats first.
GradientStats adamw_update(const AdamWJob& job, int64_t begin, int64_t end, CpuIsa isa = active_cpu_isa());
/// The same, divided over the threads of `pool` in whole work items; returns when all are done.
GradientStats adamw_update_parallel(memory::WorkerPool& pool, const AdamWJob& job, int64_t begin, int64_t end,
                                    CpuIsa isa = active_cpu_isa());

/// Returns what adamw_update would, changing nothing.
GradientStats gradient_stats(const Gradients& gradients, float gradient_scale, int64_t begin, int64_t end, CpuIsa isa = active_cpu_isa());

/// The same, divided over the threads of `pool` in whole work items.
GradientStats gradient_stats_parallel(memory::WorkerPool& pool, const Gradients& gradients, float gradient_scale, int64_t begin, int64_t end, CpuIsa isa = active_cpu_isa());

/// Makes working weights from masters: writes elements [begin, end) of `publish`, stored past the caches when 64-byte aligned.
void publish_weights(const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish, CpuIsa isa = active_cpu_isa());
void publish_weights_parallel(memory::WorkerPool& pool, const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish,
                              CpuIsa isa = active_cpu_isa());

/// Elements a thread takes at a time: 16 blocks. Divisions of a shard between callers stay fastest on multiples of it.
inline constexpr int64_t kWorkItemParameters = 16 * kBlockParameters;

}  // namespace oom::optim
