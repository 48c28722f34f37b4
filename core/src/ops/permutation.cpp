#include "oom/ops/permutation.h"

#include <cstring>
#include <limits>
#include <vector>

#include "ops/permutation_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

void build_cpu(const PermutationBuild& a) {
  std::vector<int64_t> counts(static_cast<size_t>(a.experts), 0);
  for (int64_t i = 0; i < a.choices; ++i) {
    OOM_CHECK(a.indices[i] >= 0 && a.indices[i] < a.experts, "choice ", i, " names expert ", a.indices[i], " of ", a.experts);
    ++counts[static_cast<size_t>(a.indices[i])];
  }
  int64_t end = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    int64_t& count = counts[static_cast<size_t>(e)];
    a.counts[e] = static_cast<int32_t>(count);
    a.ends[e] = static_cast<int32_t>(end + count);
    const int64_t begin = end;
    end += count;
    count = begin;
  }
  for (int64_t i = 0; i < a.choices; ++i) {
    const int64_t row = counts[static_cast<size_t>(a.indices[i])]++;
    a.token_of[row] = static_cast<int32_t>(i / a.top_k);
    a.row_of[i] = static_cast<int32_t>(row);
  }
}

}  // namespace

Permutation make_permutation(const at::Tensor& indices, int64_t experts) {
  require_contiguous(indices, at::kInt, indices, "expert indices");
  OOM_CHECK(indices.dim() == 2 && indices.size(1) >= 1, "expert indices must be [tokens, top k]; got ", indices.sizes());
  OOM_CHECK(experts >= 1 && experts <= 1024, "at most 1024 experts are supported; got ", experts);
  OOM_CHECK_LT(indices.numel(), int64_t{std::numeric_limits<int32_t>::max()}, "rows are numbered in 32 bits; use smaller token chunks");
  Permutation p{empty_on(indices, {experts}, at::kInt), empty_on(indices, {experts}, at::kInt), empty_on(indices, {indices.numel()}, at::kInt),
                empty_as(indices)};
  PermutationBuild a;
  a.indices = indices.data_ptr<int32_t>();
  a.choices = indices.numel();
  a.top_k = indices.size(1);
  a.experts = experts;
  a.counts = p.counts.data_ptr<int32_t>();
  a.ends = p.ends.data_ptr<int32_t>();
  a.token_of = p.token_of.data_ptr<int32_t>();
  a.row_of = p.row_of.data_ptr<int32_t>();
  if (on_cuda(indices)) {
    if (a.choices == 0) {
      p.counts.zero_();
      p.ends.zero_();
      return p;
    }
    const int64_t tile = permutation_tile(a.choices);
    a.tiles = (a.choices + tile - 1) / tile;
    const at::Tensor tile_counts = empty_on(indices, {experts, a.tiles}, at::kInt);
    a.tile_counts = tile_counts.data_ptr<int32_t>();
    if constexpr (kWithCuda) make_permutation_cuda(a, current_stream(indices));
  } else {
    build_cpu(a);
  }
  return p;
}

}  // namespace oom::ops
