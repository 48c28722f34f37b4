/// Arguments of the cross entropy kernel, and its CUDA launch.
#pragma once

#include "ops/element.h"

namespace oom::ops {

struct CrossEntropy {
  Rows logits, gradient;
  const int32_t* targets = nullptr;
  float* losses = nullptr;
  float scale = 1;
  float soft_cap = 0;
};

void cross_entropy_cuda(const CrossEntropy& arguments, Stream stream);

}  // namespace oom::ops
