// Backward passes under engine.deterministic, of lengths at which blocks come in another order each time: bit for bit the same, and what the usual backend gives.
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oom/ops/attention.h"
#include "oom/ops/linear.h"

namespace oom::ops {
namespace {

struct Shape {
  int64_t batch, tokens, query_heads, kv_heads, dim;
  int64_t window = 0;
  bool documents = false;
  at::ScalarType type = at::kBFloat16;
};

class DeterministicAttentionTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
    configure_math();
    set_deterministic_attention(true);
  }
  void TearDown() override { set_deterministic_attention(false); }
};

double distance(const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kFloat) - b.to(at::kFloat)).norm().item<double>() / b.to(at::kFloat).norm().item<double>(); }

TEST_P(DeterministicAttentionTest, BackwardRepeats) {
  const c10::InferenceMode inference;
  const Shape shape = GetParam();
  const at::TensorOptions options = at::TensorOptions().device(at::kCUDA).dtype(shape.type);
  const at::Tensor q = at::randn({shape.batch, shape.tokens, shape.query_heads, shape.dim}, options), dout = at::randn(q.sizes(), options);
  const at::Tensor k = at::randn({shape.batch, shape.tokens, shape.kv_heads, shape.dim}, options), v = at::randn(k.sizes(), options);
  AttentionOptions attention{.scale = 1 / std::sqrt(static_cast<double>(shape.dim)), .window_tokens = shape.window};
  if (shape.documents) attention.documents = pack_documents(std::vector<int32_t>{0, 100, 2500, 2503, static_cast<int32_t>(shape.tokens)}, q.device());
  const AttentionForward forward = attention_forward(q, k, v, attention), forward_again = attention_forward(q, k, v, attention);
  EXPECT_TRUE(forward.out.equal(forward_again.out) && forward.lse.equal(forward_again.lse)) << "forward";
  const AttentionBackward first = attention_backward(dout, q, k, v, forward.out, forward.lse, attention);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const AttentionBackward again = attention_backward(dout, q, k, v, forward.out, forward.lse, attention);
    EXPECT_TRUE(first.dq.equal(again.dq)) << "dq, repeat " << repeat;
    EXPECT_TRUE(first.dk.equal(again.dk)) << "dk, repeat " << repeat;
    EXPECT_TRUE(first.dv.equal(again.dv)) << "dv, repeat " << repeat;
  }
  set_deterministic_attention(false);
  const AttentionBackward usual = attention_backward(dout, q, k, v, forward.out, forward.lse, attention);
  const double rounding = shape.type == at::kBFloat16 ? 2e-2 : 2e-5;  // attention_test is exact about it
  EXPECT_LE(distance(first.dq, usual.dq), rounding);
  EXPECT_LE(distance(first.dk, usual.dk), rounding);
  EXPECT_LE(distance(first.dv, usual.dv), rounding);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeterministicAttentionTest,
                         ::testing::Values(Shape{.batch = 1, .tokens = 32768, .query_heads = 16, .kv_heads = 2, .dim = 256}, Shape{.batch = 4, .tokens = 4096, .query_heads = 32, .kv_heads = 4, .dim = 128},
                                           Shape{.batch = 1, .tokens = 32768, .query_heads = 2, .kv_heads = 1, .dim = 256}, Shape{.batch = 2, .tokens = 8192, .query_heads = 16, .kv_heads = 8, .dim = 256, .window = 1024},
                                           Shape{.batch = 1, .tokens = 16384, .query_heads = 16, .kv_heads = 2, .dim = 256, .documents = true},
                                           Shape{.batch = 2, .tokens = 4096, .query_heads = 8, .kv_heads = 2, .dim = 128, .type = at::kFloat}));

}  // namespace
}  // namespace oom::ops
