#include <ATen/Parallel.h>

#include <cstring>
#include <vector>

#include "oom/ops/permutation.h"
#include "ops/permutation_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

const int32_t* index_of(const at::Tensor& index, const at::Tensor& like, const char* name) {
  if (!index.defined()) return nullptr;
  require_contiguous(index, at::kInt, like, name);
  return index.data_ptr<int32_t>();
}

void copy_cpu(const RowCopy& a) {
  at::parallel_for(0, a.count, grain_rows(a.row_bytes / 4), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = a.source != nullptr ? a.source[i] : i;
      const int64_t to = a.target != nullptr ? a.target[i] : i;
      if (to < 0) continue;
      char* out = static_cast<char*>(a.out) + to * a.out_stride_bytes;
      if (from < 0)
        std::memset(out, 0, static_cast<size_t>(a.row_bytes));
      else
        std::memcpy(out, static_cast<const char*>(a.x) + from * a.x_stride_bytes, static_cast<size_t>(a.row_bytes));
    }
  });
}

template <typename T>
void combine_tokens(const Combine& a, int64_t begin, int64_t end) {
  std::vector<float> sum(static_cast<size_t>(a.y.width));
  for (int64_t t = begin; t < end; ++t) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t k = 0; k < a.top_k; ++k) {
      const float weight = a.weights != nullptr ? a.weights[t * a.top_k + k] : 1.0f;
      const T* row = a.rows.at<T>(a.row_of[t * a.top_k + k]);
      for (int64_t c = 0; c < a.y.width; ++c) sum[static_cast<size_t>(c)] += weight * static_cast<float>(row[c]);
    }
    if (a.shared.data != nullptr) {
      const float scale = a.shared_scale.data != nullptr ? read(a.shared_scale.data, a.shared_scale.element, t) : 1.0f;
      const T* shared = a.shared.at<T>(t);
      for (int64_t c = 0; c < a.y.width; ++c) sum[static_cast<size_t>(c)] += scale * static_cast<float>(shared[c]);
    }
    const T* residual = a.residual.data != nullptr ? a.residual.at<T>(t) : nullptr;
    T* y = a.y.at<T>(t);
    for (int64_t c = 0; c < a.y.width; ++c)
      y[c] = static_cast<T>(sum[static_cast<size_t>(c)] + (residual != nullptr ? static_cast<float>(residual[c]) : 0.0f));
  }
}

at::Tensor move_choices(const at::Tensor& from, const at::Tensor& row_of, bool to_rows) {
  require_contiguous(from, at::kFloat, row_of, "values of choices");
  require_contiguous(row_of, at::kInt, row_of, "row_of");
  OOM_CHECK(row_of.dim() == 2 && from.numel() == row_of.numel(), "values of sizes ", from.sizes(), " for choices of sizes ", row_of.sizes());
  at::Tensor to = to_rows ? empty_on(row_of, {row_of.numel()}, at::kFloat) : empty_on(row_of, row_of.sizes(), at::kFloat);
  if (row_of.numel() == 0) return to;
  const ChoiceMove a{from.data_ptr<float>(), to.data_ptr<float>(), row_of.data_ptr<int32_t>(), row_of.numel(), to_rows};
  if (on_cuda(row_of)) {
    if constexpr (kWithCuda) move_choices_cuda(a, current_stream(row_of));
    return to;
  }
  for (int64_t i = 0; i < a.choices; ++i) {
    if (to_rows)
      a.to[a.row_of[i]] = a.from[i];
    else
      a.to[i] = a.from[a.row_of[i]];
  }
  return to;
}

}  // namespace

void copy_rows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& source, const at::Tensor& target) {
  OOM_CHECK(x.dim() == 2 && out.dim() == 2 && x.size(1) == out.size(1) && x.scalar_type() == out.scalar_type() && x.device() == out.device(),
            "rows of sizes ", x.sizes(), " to rows of sizes ", out.sizes());
  OOM_CHECK(x.stride(1) == 1 && out.stride(1) == 1, "rows must be contiguous; strides ", x.strides(), " and ", out.strides());
  RowCopy a;
  a.source = index_of(source, x, "source");
  a.target = index_of(target, x, "target");
  a.count = source.defined() ? source.numel() : target.defined() ? target.numel() : x.size(0);
  OOM_CHECK(target.defined() ? target.numel() == a.count : a.count <= out.size(0), a.count, " rows do not fit into ", out.size(0));
  OOM_CHECK(source.defined() || a.count <= x.size(0), a.count, " rows asked of ", x.size(0));
  const int64_t element_bytes = static_cast<int64_t>(x.element_size());
  a.x_stride_bytes = x.stride(0) * element_bytes;
  a.out_stride_bytes = out.stride(0) * element_bytes;
  a.row_bytes = x.size(1) * element_bytes;
  if (a.count == 0 || a.row_bytes == 0) return;
  a.x = x.data_ptr();
  a.out = out.data_ptr();
  if (on_cuda(x)) {
    if constexpr (kWithCuda) copy_rows_cuda(a, current_stream(x));
  } else {
    copy_cpu(a);
  }
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& source) {
  at::Tensor out = empty_on(x, {source.numel(), x.size(1)}, x.scalar_type());
  copy_rows(out, x, source);
  return out;
}

void combine_out(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& row_of, const CombineTerms& terms) {
  require_contiguous(row_of, at::kInt, rows, "row_of");
  OOM_CHECK(row_of.dim() == 2 && rows.dim() == 2 && y.dim() == 2 && y.size(0) == row_of.size(0) && y.size(1) == rows.size(1) &&
                y.scalar_type() == rows.scalar_type(),
            "rows of sizes ", rows.sizes(), " by choices of sizes ", row_of.sizes(), " into ", y.sizes());
  if (terms.residual.defined()) require_alike(terms.residual, y, "residual");
  if (terms.shared.defined()) require_alike(terms.shared, y, "shared");
  if (y.numel() == 0) return;
  Combine a;
  a.rows = rows_of(rows);
  a.residual = rows_of(terms.residual);
  a.shared = rows_of(terms.shared);
  a.y = rows_of(y);
  a.shared_scale = array_of(terms.shared_scale);
  OOM_CHECK(a.shared_scale.data == nullptr || (a.shared_scale.size == y.size(0) && a.shared.data != nullptr),
            "shared_scale holds one factor a token of the shared branch");
  a.row_of = row_of.data_ptr<int32_t>();
  a.top_k = row_of.size(1);
  if (terms.weights.defined()) {
    require_contiguous(terms.weights, at::kFloat, rows, "weights");
    OOM_CHECK_EQ(terms.weights.numel(), row_of.numel(), "one weight a choice");
    a.weights = terms.weights.data_ptr<float>();
  }
  if (on_cuda(rows)) {
    if constexpr (kWithCuda) combine_cuda(a, current_stream(rows));
    return;
  }
  with_type(a.y.element, [&](auto tag) {
    at::parallel_for(0, a.y.count, grain_rows(a.y.width * (a.top_k + 1)),
                     [&](int64_t begin, int64_t end) { combine_tokens<decltype(tag)>(a, begin, end); });
  });
}

at::Tensor combine(const at::Tensor& rows, const at::Tensor& row_of, const CombineTerms& terms) {
  at::Tensor y = empty_on(rows, {row_of.size(0), rows.size(1)}, rows.scalar_type());
  combine_out(y, rows, row_of, terms);
  return y;
}

at::Tensor choices_to_rows(const at::Tensor& choices, const at::Tensor& row_of) { return move_choices(choices, row_of, true); }
at::Tensor rows_to_choices(const at::Tensor& rows, const at::Tensor& row_of) { return move_choices(rows, row_of, false); }

}  // namespace oom::ops
