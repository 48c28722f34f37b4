/// Arguments of the RMS norm kernels, and their CUDA launches.
#pragma once

#include "oom/ops/flavour.h"
#include "ops/element.h"

namespace oom::ops {

struct NormForward {
  Rows x, gate, y;
  Array weight;
  float* rstd = nullptr;
  float eps = 0;
  NormFlavour flavour = NormFlavour::kLlama;
};

struct NormBackward {
  Rows dy, x, gate, residual_gradient, dx, dgate;
  Array weight;
  const float* rstd = nullptr;
  NormFlavour flavour = NormFlavour::kLlama;
  Sink sink;
  float* partials = nullptr;  ///< [partial_count, width]: sums of the weight's gradient over fixed sets of rows; null when it is not wanted
  int64_t partial_count = 0;
};

/// Sets of rows whose weight gradients are summed apart: depends on the shape alone, never on the device, so that sums do not either.
inline int64_t norm_partial_count(int64_t rows) { return rows < 16 ? 1 : rows < 512 * 16 ? rows / 16 : 512; }

void rms_norm_forward_cuda(const NormForward& arguments, Stream stream);
void rms_norm_backward_cuda(const NormBackward& arguments, Stream stream);

}  // namespace oom::ops
