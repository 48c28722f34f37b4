#include "oom/ops/embedding.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/embedding_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

template <typename T>
void lookup(const EmbeddingForward& a) {
  at::parallel_for(0, a.out.count, grain_rows(a.out.width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = a.tokens[t] - a.begin;
      if (row < 0 || row >= a.weight.count) {
        OOM_CHECK(!a.whole, "token ", a.tokens[t], " at ", t, " is outside the embedding of ", a.weight.count, " rows");
        continue;
      }
      const T* weight = a.weight.at<T>(row);
      T* out = a.out.at<T>(t);
      if (a.scale == 1.0f)
        std::copy(weight, weight + a.out.width, out);
      else
        for (int64_t c = 0; c < a.out.width; ++c) out[c] = static_cast<T>(static_cast<float>(weight[c]) * a.scale);
    }
  });
}

void lookup_into(const at::Tensor& out, const at::Tensor& weight, const at::Tensor& tokens, int64_t begin, double scale, bool whole) {
  require_contiguous(tokens, at::kInt, weight, "tokens");
  OOM_CHECK(weight.dim() == 2 && out.dim() == 2 && out.size(0) == tokens.numel() && out.size(1) == weight.size(1) &&
                out.scalar_type() == weight.scalar_type() && out.device() == weight.device(),
            "embedding of sizes ", weight.sizes(), " for ", tokens.numel(), " tokens into ", out.sizes());
  if (out.numel() == 0) return;
  const EmbeddingForward a{rows_of(weight), rows_of(out), tokens.data_ptr<int32_t>(), begin, static_cast<float>(scale), whole};
  if (on_cuda(weight)) {
    if constexpr (kWithCuda) embedding_forward_cuda(a, current_stream(weight));
    return;
  }
  with_type(a.out.element, [&](auto tag) { lookup<decltype(tag)>(a); });
}

template <typename T>
void sum_segments(const EmbeddingBackward& a) {
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(a.d_out.count));
  for (int64_t t = 0; t < a.d_out.count; ++t) {
    const int64_t row = a.tokens[t] - a.begin;
    if (row >= 0 && row < a.rows && a.tokens[t] != a.frozen_token) order.push_back(t);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) { return a.tokens[left] < a.tokens[right]; });
  std::vector<size_t> heads;
  for (size_t i = 0; i < order.size(); ++i)
    if (i == 0 || a.tokens[order[i]] != a.tokens[order[i - 1]]) heads.push_back(i);
  heads.push_back(order.size());
  at::parallel_for(0, static_cast<int64_t>(heads.size()) - 1, grain_rows(a.d_out.width), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(a.d_out.width));
    for (int64_t h = begin; h < end; ++h) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      const size_t first = heads[static_cast<size_t>(h)];
      for (size_t i = first; i < heads[static_cast<size_t>(h) + 1]; ++i) {
        const T* d_out = a.d_out.at<T>(order[i]);
        for (int64_t c = 0; c < a.d_out.width; ++c) sum[static_cast<size_t>(c)] += static_cast<float>(d_out[c]);
      }
      const int64_t row = a.tokens[order[first]] - a.begin;
      for (int64_t c = 0; c < a.d_out.width; ++c) add_to(a.sink, row * a.d_out.width + c, a.scale * sum[static_cast<size_t>(c)]);
    }
  });
}

}  // namespace

void embedding_forward_out(const at::Tensor& out, const at::Tensor& weight, const at::Tensor& tokens, int64_t begin, double scale) {
  lookup_into(out, weight, tokens, begin, scale, false);
}

at::Tensor embedding_forward(const at::Tensor& weight, const at::Tensor& tokens, double scale) {
  at::Tensor out = empty_on(weight, {tokens.numel(), weight.size(1)}, weight.scalar_type());
  lookup_into(out, weight, tokens, 0, scale, true);
  return out;
}

void embedding_backward(const GradientSink& sink, const at::Tensor& d_out, const at::Tensor& tokens, int64_t begin, double scale,
                        int64_t frozen_token) {
  require_contiguous(tokens, at::kInt, d_out, "tokens");
  OOM_CHECK(d_out.dim() == 2 && sink.tensor.dim() == 2 && d_out.size(0) == tokens.numel() && d_out.size(1) == sink.tensor.size(1) &&
                sink.tensor.device() == d_out.device(),
            "gradient of sizes ", d_out.sizes(), " for ", tokens.numel(), " tokens into ", sink.tensor.sizes());
  OOM_CHECK_LT(tokens.numel(), int64_t{std::numeric_limits<int32_t>::max()}, "tokens of one call");
  EmbeddingBackward a;
  a.d_out = rows_of(d_out);
  a.tokens = tokens.numel() > 0 ? tokens.data_ptr<int32_t>() : nullptr;
  a.begin = begin;
  a.rows = sink.tensor.size(0);
  a.frozen_token = frozen_token;
  a.scale = static_cast<float>(scale);
  a.sink = sink_of(sink, sink.tensor.numel());
  if (!sink.accumulate) sink.tensor.zero_();
  if (d_out.numel() == 0 || a.rows == 0) return;
  if (on_cuda(d_out)) {
    if constexpr (kWithCuda) {
      a.workspace_bytes = embedding_workspace_bytes(a.d_out.count);
      const at::Tensor workspace = empty_on(d_out, {a.workspace_bytes}, at::kByte);
      a.workspace = workspace.data_ptr();
      embedding_backward_cuda(a, current_stream(d_out));
    }
    return;
  }
  with_type(a.d_out.element, [&](auto tag) { sum_segments<decltype(tag)>(a); });
}

}  // namespace oom::ops
