/// Arguments of the reductions, and their CUDA launches.
#pragma once

#include "ops/element.h"

namespace oom::ops {

constexpr int kMaxPartials = 16;     ///< tensors that one launch of sum_partials takes
constexpr int kReduceBlocks = 1024;  ///< partial sums of a whole tensor: never more

struct WholeSum {
  Array x;
  bool squares = false;
  double* total = nullptr;
  double* partials = nullptr;  ///< [kReduceBlocks]
};

/// out = (accumulate ? out : 0) + sum of the sources, in order.
struct SumPartials {
  Array out;
  Array sources[kMaxPartials];
  int count = 0;
  bool accumulate = false;
};

void whole_sum_cuda(const WholeSum& arguments, Stream stream);
void sum_partials_cuda(const SumPartials& arguments, Stream stream);

}  // namespace oom::ops
