#include "oom/ops/causal_conv.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "ops/activation_math.h"
#include "ops/causal_conv_cuda.h"
#include "ops/rows.h"

namespace oom::ops {
namespace {

constexpr int64_t kChannels = 64;  // channels that a thread of the CPU's backward walks through all tokens at once

ConvInput input_of(const at::Tensor& x, const at::Tensor& weight, int64_t taps, const Segments& segments, const at::Tensor& context) {
  OOM_CHECK_EQ(x.dim(), int64_t{2}, "the operand of a causal convolution is [tokens, channels]");
  require_segments(segments, x.size(0), x);
  OOM_CHECK(taps >= kMinimumTaps && taps <= kMaximumTaps, "a causal convolution has ", kMinimumTaps, " to ", kMaximumTaps, " taps; got ", taps);
  ConvInput in;
  in.x = rows_of(x);
  in.taps = taps;
  in.length = std::max<int64_t>(x.size(0) / segments.sequences, 1);
  if (weight.defined()) {
    OOM_CHECK(weight.numel() == x.size(1) * taps && weight.device() == x.device(), "the weight must be [", x.size(1), ", ", taps, "] on ",
              x.device().str(), "; got ", weight.sizes());
    in.weight = array_of(weight);
  }
  if (segments.starts.defined()) {
    in.starts = segments.starts.data_ptr<int32_t>();
    in.segments = segments.count();
  }
  if (context.defined()) {
    require_contiguous(context, x.scalar_type(), x, "context");
    OOM_CHECK(context.sizes() == at::IntArrayRef({segments.sequences, taps - 1, x.size(1)}), "context must be [", segments.sequences, ", ", taps - 1, ", ",
              x.size(1), "]; got ", context.sizes());
    in.context = context.data_ptr();
  }
  return in;
}

int64_t taps_of(const at::Tensor& x, const at::Tensor& weight) { return x.size(1) > 0 ? weight.numel() / x.size(1) : weight.size(-1); }

/// The weight as [K][C] in FP32.
std::vector<float> taps_by_channel(const ConvInput& in) {
  std::vector<float> weight(static_cast<size_t>(in.taps * in.x.width));
  for (int64_t c = 0; c < in.x.width; ++c)
    for (int64_t j = 0; j < in.taps; ++j) weight[static_cast<size_t>(j * in.x.width + c)] = read(in.weight.data, in.weight.element, c * in.taps + j);
  return weight;
}

/// Writes the convolution before SiLU of channels [first, first + count) of row t.
template <typename T>
void convolve(const ConvInput& in, const std::vector<float>& weight, int64_t t, int64_t start, int64_t first, int64_t count, float* sums) {
  std::fill(sums, sums + count, 0.0f);
  for (int64_t j = 0; j < in.taps; ++j) {
    const T* row = in.row<T>(t - (in.taps - 1) + j, start);
    if (row == nullptr) continue;
    const float* w = weight.data() + j * in.x.width + first;
    for (int64_t c = 0; c < count; ++c) sums[c] += w[c] * static_cast<float>(row[first + c]);
  }
}

template <typename T>
void forward_rows(const ConvForward& a, const std::vector<float>& weight, int64_t begin, int64_t end) {
  std::vector<float> sums(static_cast<size_t>(a.in.x.width));
  for (int64_t t = begin; t < end; ++t) {
    convolve<T>(a.in, weight, t, a.in.segment_start(t), 0, a.in.x.width, sums.data());
    T* y = a.y.at<T>(t);
    for (int64_t c = 0; c < a.in.x.width; ++c) y[c] = static_cast<T>(activate(GatedActivation::kSilu, sums[static_cast<size_t>(c)]).value);
  }
}

/// The backward of channels [first, first + count), token by token. The gradients before SiLU of the last K tokens wait in a ring for the row that all of
/// them reach.
template <typename T>
class ChannelBackward {
 public:
  ChannelBackward(const ConvBackward& a, const std::vector<float>& weight, int64_t first, int64_t count)
      : a_(a), weight_(weight), first_(first), count_(count), ring_(static_cast<size_t>(a.in.taps * count)), starts_(static_cast<size_t>(a.in.taps)),
        d_weight_(static_cast<size_t>(a.in.taps * count), 0.0), sums_(static_cast<size_t>(count)) {}

  void run() {
    const int64_t tokens = a_.in.x.count, taps = a_.in.taps;
    for (int64_t t = 0; t < tokens + taps - 1; ++t) {
      if (t < tokens) take(t);
      if (t - (taps - 1) >= 0) finish(t - (taps - 1));
    }
    if (a_.sink.data != nullptr)
      for (int64_t c = 0; c < count_; ++c)
        for (int64_t j = 0; j < taps; ++j) add_to(a_.sink, (first_ + c) * taps + j, static_cast<float>(d_weight_[static_cast<size_t>(j * count_ + c)]));
  }

 private:
  float* ring(int64_t t) { return ring_.data() + t % a_.in.taps * count_; }

  void take(int64_t t) {
    const ConvInput& in = a_.in;
    const int64_t start = in.segment_start(t);
    starts_[static_cast<size_t>(t % in.taps)] = start;
    convolve<T>(in, weight_, t, start, first_, count_, sums_.data());
    const T* dy = a_.dy.at<T>(t) + first_;
    float* dc = ring(t);
    for (int64_t c = 0; c < count_; ++c) dc[c] = static_cast<float>(dy[c]) * activate(GatedActivation::kSilu, sums_[static_cast<size_t>(c)]).slope;
    for (int64_t j = 0; j < in.taps; ++j) {
      const int64_t position = t - (in.taps - 1) + j;
      const T* row = in.row<T>(position, start);
      if (row != nullptr)
        for (int64_t c = 0; c < count_; ++c) d_weight_[static_cast<size_t>(j * count_ + c)] += static_cast<double>(dc[c]) * static_cast<float>(row[first_ + c]);
      if (position < start && start % in.length == 0 && a_.d_context != nullptr) {
        float* d_row = a_.d_context + (start / in.length * (in.taps - 1) + in.taps - 1 + position - start) * in.x.width + first_;
        const float* w = weight_.data() + j * in.x.width + first_;
        for (int64_t c = 0; c < count_; ++c) d_row[c] += w[c] * dc[c];
      }
    }
  }

  /// Row u has met all that read it.
  void finish(int64_t u) {
    const ConvInput& in = a_.in;
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    for (int64_t d = 0; d < in.taps && u + d < in.x.count; ++d) {
      if (starts_[static_cast<size_t>((u + d) % in.taps)] > u) break;
      const float* dc = ring(u + d);
      const float* w = weight_.data() + (in.taps - 1 - d) * in.x.width + first_;
      for (int64_t c = 0; c < count_; ++c) sums_[static_cast<size_t>(c)] += w[c] * dc[c];
    }
    const int64_t slot = a_.d_next_context != nullptr ? in.next_slot(u, u / in.length) : -1;
    const float* next = slot >= 0 ? a_.d_next_context + slot * in.x.width + first_ : nullptr;
    T* dx = a_.dx.at<T>(u) + first_;
    for (int64_t c = 0; c < count_; ++c) dx[c] = static_cast<T>(sums_[static_cast<size_t>(c)] + (next != nullptr ? next[c] : 0.0f));
  }

  const ConvBackward& a_;
  const std::vector<float>& weight_;
  int64_t first_, count_;
  std::vector<float> ring_;
  std::vector<int64_t> starts_;  // of the ring's tokens' segments
  std::vector<double> d_weight_;
  std::vector<float> sums_;
};

/// The gradient of a context row that is handed on as it is: sequences shorter than the context.
void start_d_context(const ConvBackward& a, int64_t sequences) {
  const int64_t rows = a.in.taps - 1, width = a.in.x.width;
  for (int64_t b = 0; b < sequences; ++b)
    for (int64_t m = 0; m < rows; ++m) {
      float* to = a.d_context + (b * rows + m) * width;
      const int64_t slot = a.d_next_context != nullptr ? a.in.next_slot(b * a.in.length - rows + m, b) : -1;
      if (slot >= 0)
        std::copy_n(a.d_next_context + slot * width, width, to);
      else
        std::fill_n(to, width, 0.0f);
    }
}

}  // namespace

at::Tensor causal_conv_forward(const at::Tensor& x, const at::Tensor& weight, const Segments& segments, const at::Tensor& context) {
  at::Tensor y = empty_as(x);
  const ConvForward a{input_of(x, weight, taps_of(x, weight), segments, context), rows_of(y)};
  if (x.numel() == 0) return y;
  if (on_cuda(x)) {
    if constexpr (kWithCuda) causal_conv_forward_cuda(a, current_stream(x));
    return y;
  }
  const std::vector<float> taps = taps_by_channel(a.in);
  with_type(a.in.x.element, [&](auto tag) {
    at::parallel_for(0, a.in.x.count, grain_rows(a.in.x.width * a.in.taps),
                     [&](int64_t begin, int64_t end) { forward_rows<decltype(tag)>(a, taps, begin, end); });
  });
  return y;
}

at::Tensor causal_conv_context(const at::Tensor& x, int64_t taps, const Segments& segments, const at::Tensor& context) {
  const ConvInput in = input_of(x, {}, taps, segments, context);
  at::Tensor next = empty_on(x, {segments.sequences, taps - 1, x.size(1)}, x.scalar_type());
  if (x.numel() == 0) return context.defined() ? next.copy_(context) : next.zero_();
  if (on_cuda(x)) {
    if constexpr (kWithCuda) causal_conv_context_cuda(in, segments.sequences, next.data_ptr(), current_stream(x));
    return next;
  }
  with_type(in.x.element, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t b = 0; b < segments.sequences; ++b) {
      const int64_t end = (b + 1) * in.length, start = in.segment_start(end - 1);
      for (int64_t m = 0; m < taps - 1; ++m) {
        T* to = static_cast<T*>(next.data_ptr()) + (b * (taps - 1) + m) * in.x.width;
        const T* from = in.row<T>(end - (taps - 1) + m, start);
        for (int64_t c = 0; c < in.x.width; ++c) to[c] = from != nullptr ? from[c] : T(0);
      }
    }
  });
  return next;
}

at::Tensor causal_conv_backward(const at::Tensor& dx, const GradientSink& weight_sink, const at::Tensor& dy, const at::Tensor& x,
                                const at::Tensor& weight, const Segments& segments, const at::Tensor& context, const at::Tensor& d_next_context,
                                bool wants_context) {
  const int64_t taps = taps_of(x, weight);
  ConvBackward a{.in = input_of(x, weight, taps, segments, context), .dy = rows_of(dy), .dx = rows_of(dx), .sink = sink_of(weight_sink, weight.numel())};
  require_alike(dy, x, "dy");
  require_alike(dx, x, "dx");
  const std::vector<int64_t> context_sizes{segments.sequences, taps - 1, x.size(1)};
  if (d_next_context.defined()) {
    require_contiguous(d_next_context, at::kFloat, x, "d_next_context");
    OOM_CHECK(d_next_context.sizes() == at::IntArrayRef(context_sizes), "d_next_context must be ", at::IntArrayRef(context_sizes), "; got ", d_next_context.sizes());
    a.d_next_context = d_next_context.data_ptr<float>();
  }
  at::Tensor d_context;
  if (wants_context) {
    d_context = empty_on(x, context_sizes, at::kFloat);
    a.d_context = d_context.data_ptr<float>();
  }
  if (x.numel() == 0) {
    if (a.sink.data != nullptr && !a.sink.accumulate) weight_sink.tensor.zero_();
    if (wants_context) d_next_context.defined() ? d_context.copy_(d_next_context) : d_context.zero_();
    return d_context;
  }
  if (on_cuda(x)) {
    at::Tensor partials;
    if (a.sink.data != nullptr) {
      partials = empty_on(x, {conv_partial_count(a.in.x.count), a.in.x.width * taps}, at::kFloat);
      a.partials = partials.data_ptr<float>();
    }
    if constexpr (kWithCuda) causal_conv_backward_cuda(a, segments.sequences, current_stream(x));
    return d_context;
  }
  if (wants_context) start_d_context(a, segments.sequences);
  const std::vector<float> by_channel = taps_by_channel(a.in);
  const int64_t blocks = (a.in.x.width + kChannels - 1) / kChannels;
  with_type(a.in.x.element, [&](auto tag) {
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        ChannelBackward<decltype(tag)>(a, by_channel, block * kChannels, std::min(kChannels, a.in.x.width - block * kChannels)).run();
    });
  });
  return d_context;
}

}  // namespace oom::ops
