#include "oom/ops/causal_conv.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

struct Case {
  int64_t batch, length, channels, taps;
  std::vector<int64_t> starts;  ///< empty: each sequence is one segment
};

class CausalConvTest : public PoisonedTest {
 protected:
  /// The FP64 function, row by row: y [T, C] and the next context [B, K - 1, C].
  struct Reference {
    at::Tensor x, weight, context;
    at::Tensor y, next;
  };
  static void run(Reference& r, const Case& c) {
    const int64_t rows = c.taps - 1;
    std::vector<at::Tensor> y, next;
    for (int64_t b = 0; b < c.batch; ++b) {
      // What the token at hand sees on its left, oldest first.
      std::vector<at::Tensor> left;
      for (int64_t m = 0; m < rows; ++m) left.push_back(r.context[b][m]);
      for (int64_t i = 0; i < c.length; ++i) {
        const int64_t t = b * c.length + i;
        if (i > 0 && std::find(c.starts.begin(), c.starts.end(), t) != c.starts.end())
          for (at::Tensor& row : left) row = at::zeros_like(row);
        left.push_back(r.x[t]);
        at::Tensor sum = at::zeros_like(r.x[t]);
        for (int64_t j = 0; j < c.taps; ++j) sum = sum + r.weight.select(1, j) * left[static_cast<size_t>(j)];
        y.push_back(at::silu(sum));
        left.erase(left.begin());
      }
      next.push_back(at::stack(left));
    }
    r.y = at::stack(y);
    r.next = at::stack(next);
  }

  Segments segments(const Case& c) {
    if (c.starts.empty()) return {.sequences = c.batch, .starts = {}, .host_starts = {}};
    host_.assign(c.starts.begin(), c.starts.end());
    return {c.batch, int32(c.starts), host_};
  }

  void check(const Case& c) {
    const int64_t tokens = c.batch * c.length, rows = c.taps - 1;
    const std::string what = "batch " + std::to_string(c.batch) + " length " + std::to_string(c.length) + " channels " + std::to_string(c.channels) + " taps " +
                             std::to_string(c.taps) + " ";
    // Rows inside a wider projection.
    const at::Tensor x = random({tokens, c.channels + 8}).narrow(1, 8, c.channels), weight = random({c.channels, 1, c.taps}), dy = random({tokens, c.channels});
    const at::Tensor context = random({c.batch, rows, c.channels}), d_next = random({c.batch, rows, c.channels}).to(at::kFloat);
    const Segments where = segments(c);
    Reference exact{fp64(x).requires_grad_(), fp64(weight).view({c.channels, c.taps}).requires_grad_(), fp64(context).requires_grad_(), {}, {}};
    run(exact, c);
    ((exact.y * fp64(dy)).sum() + (exact.next * fp64(d_next)).sum()).backward();

    expect_rounded(causal_conv_forward(x, weight, where, context), exact.y, what + "y", 2e-6);
    expect_identical(causal_conv_context(x, c.taps, where, context), exact.next.to(options()), what + "next context");
    for (const bool accumulate : {false, true}) {
      const at::Tensor dx = at::empty({tokens, c.channels + 8}, options()).narrow(1, 0, c.channels);
      const at::Tensor sink = accumulate ? at::full(weight.sizes(), 2.0, fp32()) : at::empty(weight.sizes(), fp32());
      const at::Tensor d_context = causal_conv_backward(dx, {sink, accumulate}, dy, x, weight, where, context, d_next, true);
      expect_rounded(dx, exact.x.grad(), what + "dx", 2e-6);
      expect_rounded(d_context, exact.context.grad(), what + "d context", 2e-6);
      expect_rounded(sink, exact.weight.grad().view(weight.sizes()) + (accumulate ? 2.0 : 0.0), what + "d weight", 5e-6);
    }
  }

 private:
  std::vector<int32_t> host_;
};

TEST_P(CausalConvTest, AgreesWithRowByRowFp64) {
  for (const int64_t length : {1, 2, 3, 4, 63, 64, 65, 130}) check({2, length, 24, 4, {}});
  for (const int64_t taps : {2, 3, 4}) check({1, 70, 16, taps, {}});
  check({1, 5, 1, 4, {}});
  check({3, 70, 300, 4, {}});
  check({1, 300, 1100, 4, {}});
}

TEST_P(CausalConvTest, SegmentsSeeNothingOfTheirNeighbours) {
  check({1, 150, 24, 4, {0, 1, 2, 60, 63, 64, 130, 149, 150}});
  check({2, 75, 24, 4, {0, 0, 30, 30, 75, 139, 150, 150}});
  check({1, 5, 8, 4, {0, 4, 5}});
  check({4, 2, 8, 4, {0, 1, 2, 4, 5, 6, 8}});
}

TEST_P(CausalConvTest, SlicesWithTheirContextAreTheWhole) {
  const int64_t length = 90, channels = 24, taps = 4;
  const at::Tensor x = random({length, channels}), weight = random({channels, taps}), dy = random({length, channels});
  const at::Tensor whole = causal_conv_forward(x, weight, {});
  const at::Tensor dx = at::empty_like(x), sink = at::zeros({channels, taps}, fp32());
  causal_conv_backward(dx, {sink, true}, dy, x, weight, {}, {}, {}, false);
  const std::vector<std::pair<int64_t, int64_t>> slices{{0, 64}, {64, 1}, {65, 2}, {67, 23}};
  std::vector<at::Tensor> contexts{at::zeros({1, taps - 1, channels}, options())};
  for (const auto& [begin, rows] : slices) {
    expect_identical(causal_conv_forward(x.narrow(0, begin, rows), weight, {}, contexts.back()), whole.narrow(0, begin, rows), "y");
    contexts.push_back(causal_conv_context(x.narrow(0, begin, rows), taps, {}, contexts.back()));
  }
  at::Tensor d_context;
  const at::Tensor parts = at::empty_like(x), parts_sink = at::zeros({channels, taps}, fp32());
  for (size_t i = slices.size(); i-- > 0;) {
    const auto [begin, rows] = slices[i];
    d_context = causal_conv_backward(parts.narrow(0, begin, rows), {parts_sink, true}, dy.narrow(0, begin, rows), x.narrow(0, begin, rows), weight, {}, contexts[i],
                                     d_context, true);
  }
  expect_near(parts, fp64(dx), bf16() ? 4e-3 : 1e-6, "dx");
  expect_near(parts_sink, fp64(sink), 2e-6, "d weight");
}

TEST_P(CausalConvTest, RepeatsBitForBit) {
  const at::Tensor x = random({700, 64}), dy = random({700, 64}), weight = random({64, 4});
  const at::Tensor dx = at::empty_like(x), first = at::empty({64, 4}, fp32()), second = at::empty({64, 4}, fp32());
  causal_conv_backward(dx, {first, false}, dy, x, weight, {}, {}, {}, false);
  causal_conv_backward(dx, {second, false}, dy, x, weight, {}, {}, {}, false);
  expect_identical(first, second, "d weight");
}

TEST_P(CausalConvTest, NoRowsHandTheContextOn) {
  const at::Tensor x = random({0, 8}), weight = random({8, 4}), context = random({2, 3, 8}), d_next = random({2, 3, 8}).to(at::kFloat);
  const Segments two{.sequences = 2, .starts = {}, .host_starts = {}};
  EXPECT_EQ(causal_conv_forward(x, weight, two, context).sizes(), x.sizes());
  expect_identical(causal_conv_context(x, 4, two, context), context, "context");
  const at::Tensor sink = at::empty({8, 4}, fp32());
  expect_identical(causal_conv_backward(x, {sink, false}, x, x, weight, two, context, d_next, true), d_next, "its gradient");
  EXPECT_EQ(sink.abs().sum().item<float>(), 0.0f);
}

TEST_P(CausalConvTest, WrongOperandsAreRefused) {
  const at::Tensor x = random({10, 8});
  EXPECT_THROW(causal_conv_forward(x, random({8, 5}), {}), Error) << "five taps";
  EXPECT_THROW(causal_conv_forward(x, random({9, 4}), {}), Error) << "weight of nine channels";
  EXPECT_THROW(causal_conv_forward(x, random({8, 4}), {}, random({1, 2, 8})), Error) << "context of two rows";
  EXPECT_THROW(causal_conv_forward(x, random({8, 4}), {.sequences = 3, .starts = {}, .host_starts = {}}), Error) << "10 tokens in 3 sequences";
}

INSTANTIATE_TEST_SUITE_P(Places, CausalConvTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
