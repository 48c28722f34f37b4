#include "oom/ops/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class EmbeddingTest : public PoisonedTest {
 protected:
  at::Tensor random_tokens(int64_t count, int64_t vocabulary) {
    auto generator = at::detail::createCPUGenerator(11);
    return at::randint(0, vocabulary, {count}, generator, at::TensorOptions().dtype(at::kInt)).to(options().dtype(at::kInt));
  }
  /// FP64 gradient of the whole table.
  static at::Tensor reference(const at::Tensor& d_out, const at::Tensor& tokens, int64_t vocabulary, double scale) {
    at::Tensor weight = at::zeros({vocabulary, d_out.size(1)}, at::kDouble).requires_grad_();
    (at::embedding(weight, tokens.to(at::kCPU).to(at::kLong)) * scale).backward(fp64(d_out));
    return weight.grad();
  }
};

TEST_P(EmbeddingTest, LooksUp) {
  for (const int64_t width : {64, 5}) {
    const at::Tensor weight = random({30, width}), tokens = random_tokens(100, 30);
    const at::Tensor rows = at::embedding(weight.to(at::kCPU), tokens.to(at::kCPU));
    expect_identical(embedding_forward(weight, tokens).to(at::kCPU), rows, "rows");
    expect_rounded(embedding_forward(weight, tokens, 53.0), fp64(rows) * 53.0, "scaled rows");
    const at::Tensor pieces = at::empty({100, width}, options());
    embedding_forward_out(pieces, weight.narrow(0, 0, 13), tokens, 0);
    embedding_forward_out(pieces, weight.narrow(0, 13, 17), tokens, 13);
    expect_identical(pieces.to(at::kCPU), rows, "two vocabulary slices");
  }
}

TEST_P(EmbeddingTest, ATokenOutsideTheTableShows) {
  const at::Tensor weight = random({8, 16});
  if (GetParam().device == c10::DeviceType::CPU) {
    EXPECT_THROW(embedding_forward(weight, int32({1, 8})), Error);
  } else {
    EXPECT_TRUE(embedding_forward(weight, int32({1, 8}))[1].isnan().all().item<bool>());
  }
}

TEST_P(EmbeddingTest, GradientSumsInFp32) {
  for (const auto& [count, vocabulary, width] :
       {std::tuple<int64_t, int64_t, int64_t>{500, 40, 64}, {3000, 2, 40}, {17, 1000, 5}, {700, 256, 2048}, {1, 1, 1}}) {
    const at::Tensor tokens = random_tokens(count, vocabulary), d_out = random({count, width});
    const at::Tensor expected = reference(d_out, tokens, vocabulary, 0.5);
    const at::Tensor fresh = at::empty({vocabulary, width}, fp32());
    embedding_backward({fresh, false}, d_out, tokens, 0, 0.5);
    expect_near(fresh, expected, 3e-6, "overwritten FP32");
    const at::Tensor own = at::empty({vocabulary, width}, options());
    embedding_backward({own, false}, d_out, tokens, 0, 0.5);
    expect_rounded(own, expected, "overwritten in the model's type", 3e-6);
    const at::Tensor added = at::full({vocabulary, width}, 2.0, fp32());
    embedding_backward({added, true}, d_out, tokens, 0, 0.5);
    expect_near(added, expected + 2.0, 3e-6, "accumulated");
    const at::Tensor repeat = at::empty({vocabulary, width}, fp32());
    embedding_backward({repeat, false}, d_out, tokens, 0, 0.5);
    expect_identical(repeat, fresh, "repeats bit for bit");
  }
}

TEST_P(EmbeddingTest, VocabularySlicesAndTheFrozenToken) {
  const at::Tensor tokens = random_tokens(200, 20), d_out = random({200, 24});
  const at::Tensor expected = reference(d_out, tokens, 20, 1.0);
  const at::Tensor slice = at::empty({7, 24}, fp32());
  embedding_backward({slice, false}, d_out, tokens, 6);
  expect_near(slice, expected.narrow(0, 6, 7), 3e-6, "rows 6 to 12");
  const at::Tensor whole = at::empty({20, 24}, fp32());
  embedding_backward({whole, false}, d_out, tokens, 0, 1.0, 3);
  EXPECT_EQ(whole[3].abs().sum().item<float>(), 0.0f) << "the frozen row";
  expect_near(whole.narrow(0, 4, 16), expected.narrow(0, 4, 16), 3e-6, "other rows");
}

TEST_P(EmbeddingTest, NoTokensAndNoneInTheSlice) {
  const at::Tensor none = at::empty({0}, options().dtype(at::kInt)), sink = at::empty({5, 8}, fp32());
  EXPECT_EQ(embedding_forward(random({4, 8}), none).sizes(), (std::vector<int64_t>{0, 8}));
  embedding_backward({sink, false}, random({0, 8}), none);
  EXPECT_EQ(sink.abs().sum().item<float>(), 0.0f);
  const at::Tensor apart = at::empty({5, 8}, fp32());
  embedding_backward({apart, false}, random({3, 8}), int32({1, 2, 100}), 10);
  EXPECT_EQ(apart.abs().sum().item<float>(), 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Places, EmbeddingTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
