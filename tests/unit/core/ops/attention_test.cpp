#include "oom/ops/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

#include "operand.h"
#include "ops/attention_kernels.h"

namespace oom::ops {
namespace {

using testing::all_places;
using testing::expect_identical;
using testing::expect_near;
using testing::fp64;

struct Case {
  int64_t batch, tokens, query_heads, kv_heads, dim;
  int64_t window = 0;
  std::vector<int32_t> starts = {};
};

struct Expected {
  at::Tensor out, lse, dq, dk, dv;
};

/// Attention as written in a textbook, FP64, gradients by LibTorch's autograd. The gradient of the scores is P (dP - rowsum(dO O)); kernels read O as
/// it was saved, so where it was rounded to BF16 that sum is of the rounded O: a property of the method, not an error of a kernel.
Expected textbook(const Case& c, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dout, double scale,
                  const at::Tensor& saved_out) {
  at::Tensor q64 = fp64(q).requires_grad_(), k64 = fp64(k).requires_grad_(), v64 = fp64(v).requires_grad_();
  const int64_t group = c.query_heads / c.kv_heads;
  const auto heads_first = [&](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor keys = heads_first(k64).repeat_interleave(group, 1), values = heads_first(v64).repeat_interleave(group, 1);
  const at::Tensor row = at::arange(c.tokens, at::kLong).unsqueeze(1), column = at::arange(c.tokens, at::kLong).unsqueeze(0);
  at::Tensor hidden = column > row;
  if (c.window > 0) hidden = hidden.logical_or(column <= row - c.window);
  for (size_t i = 1; i + 1 < c.starts.size(); ++i) hidden = hidden.logical_or((row >= c.starts[i]).logical_and(column < c.starts[i]));
  const at::Tensor scores = at::matmul(heads_first(q64), keys.transpose(2, 3)).mul(scale).masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor probability = at::softmax(scores, -1), out = heads_first(at::matmul(probability, values));
  // The rounding of O moves rowsum(dO O) by this much, which reaches the scores as -P times it.
  const at::Tensor moved = ((fp64(saved_out) - out.detach()) * fp64(dout)).sum(-1).transpose(1, 2).unsqueeze(-1);
  const at::Tensor from_rounding = (scores.masked_fill(hidden, 0) * (probability.detach() * moved)).sum();
  ((out * fp64(dout)).sum() - from_rounding).backward();
  return {out.detach(), at::logsumexp(scores.detach(), {-1}), q64.grad(), k64.grad(), v64.grad()};
}

class AttentionTest : public testing::PlacedTest {
 protected:
  struct Operands {
    at::Tensor q, k, v, dout;
    AttentionOptions options;
  };
  Operands operands_of(const Case& c) {
    Operands o{random({c.batch, c.tokens, c.query_heads, c.dim}), random({c.batch, c.tokens, c.kv_heads, c.dim}),
               random({c.batch, c.tokens, c.kv_heads, c.dim}), random({c.batch, c.tokens, c.query_heads, c.dim}), {}};
    o.options.scale = 1 / std::sqrt(static_cast<double>(c.dim));
    o.options.window_tokens = c.window;
    if (!c.starts.empty()) o.options.documents = pack_documents(c.starts, o.q.device());
    return o;
  }
  /// The CPU's own backends compute in FP32 and round once; the others round probabilities to BF16 as well.
  double rounding() const { return !bf16() ? 2e-5 : keeps_probabilities() ? 4e-3 : 3e-2; }
  virtual bool keeps_probabilities() const { return GetParam().device == c10::DeviceType::CPU; }

  void expect_agreement(const Case& c, const Operands& o, const std::string& what) {
    const AttentionForward forward = attention_forward(o.q, o.k, o.v, o.options);
    expect_agreement(c, o, forward, attention_backward(o.dout, o.q, o.k, o.v, forward.out, forward.lse, o.options), what);
  }
  /// `backward` has read `forward`, whichever backends made them.
  void expect_agreement(const Case& c, const Operands& o, const AttentionForward& forward, const AttentionBackward& backward, const std::string& what) {
    const Expected expected = textbook(c, o.q, o.k, o.v, o.dout, o.options.scale, forward.out);
    expect_near(forward.out, expected.out, rounding(), what + " out");
    EXPECT_EQ(forward.lse.scalar_type(), at::kFloat);
    expect_near(forward.lse, expected.lse, 2e-5, what + " lse");
    expect_score_gradient(backward.dq, expected.dq, what + " dq");
    expect_score_gradient(backward.dk, expected.dk, what + " dk");
    expect_near(backward.dv, expected.dv, rounding(), what + " dv");
  }
  /// Through the scores: P (dP - rowsum(dO O)) of operands of size one. Where a row sees one key alone the two are equal, and in FP32 what is left of them is the
  /// rounding of O and of two sums: not a number to be relative to, but one to be as small as the rounding of what was subtracted.
  void expect_score_gradient(const at::Tensor& actual, const at::Tensor& reference, const std::string& what) {
    const double size = fp64(reference).pow(2).mean().sqrt().item<double>();
    if (bf16() || size >= rounding()) return expect_near(actual, reference, rounding(), what);
    ASSERT_EQ(actual.sizes(), reference.sizes()) << what;
    EXPECT_LE((fp64(actual) - fp64(reference)).abs().max().item<double>(), rounding()) << what;
  }
  /// The second of two documents, which begins at token `edge`, is changed: the first one's results are not. `repeats`: dq is exact from run to run.
  void expect_no_influence(const Operands& o, int64_t edge, bool repeats) {
    const AttentionForward before = attention_forward(o.q, o.k, o.v, o.options);
    const AttentionBackward gradients = attention_backward(o.dout, o.q, o.k, o.v, before.out, before.lse, o.options);
    for (const at::Tensor& x : {o.q, o.k, o.v, o.dout}) x.narrow(1, edge, x.size(1) - edge).mul_(-3);
    const AttentionForward after = attention_forward(o.q, o.k, o.v, o.options);
    const AttentionBackward moved = attention_backward(o.dout, o.q, o.k, o.v, after.out, after.lse, o.options);
    const auto first = [&](const at::Tensor& x) { return x.narrow(1, 0, edge); };
    expect_identical(first(after.out), first(before.out), "out");
    expect_identical(after.lse.narrow(2, 0, edge), before.lse.narrow(2, 0, edge), "lse");
    expect_identical(first(moved.dk), first(gradients.dk), "dk");
    expect_identical(first(moved.dv), first(gradients.dv), "dv");
    if (repeats) expect_identical(first(moved.dq), first(gradients.dq), "dq");
    EXPECT_FALSE(after.out.equal(before.out));
  }
};

TEST_P(AttentionTest, HeadDimensionsAndGroups) {
  for (const int64_t dim : {16, 32, 64, 128, 256, 512})
    for (const int64_t ratio : {1, 4, 8}) {
      const Case c{.batch = 2, .tokens = 45, .query_heads = 2 * ratio, .kv_heads = 2, .dim = dim};
      expect_agreement(c, operands_of(c), "D " + std::to_string(dim) + " ratio " + std::to_string(ratio));
    }
}

TEST_P(AttentionTest, OneTokenAndLongerThanABlock) {
  for (const int64_t tokens : {1, 2, 129, 300}) {
    const Case c{.batch = 1, .tokens = tokens, .query_heads = 4, .kv_heads = 1, .dim = 64};
    expect_agreement(c, operands_of(c), "S " + std::to_string(tokens));
  }
}

TEST_P(AttentionTest, Windows) {
  for (const int64_t dim : {64, 512})
    for (const int64_t window : {1, 2, 31, 128, 199, 200, 1000}) {
      const Case c{.batch = 1, .tokens = 200, .query_heads = 4, .kv_heads = 2, .dim = dim, .window = window};
      expect_agreement(c, operands_of(c), "D " + std::to_string(dim) + " window " + std::to_string(window));
    }
}

TEST_P(AttentionTest, AWindowOfOneTokenCopiesValues) {
  const Case c{.batch = 1, .tokens = 40, .query_heads = 2, .kv_heads = 2, .dim = 32, .window = 1};
  const Operands o = operands_of(c);
  const at::Tensor out = attention_forward(o.q, o.k, o.v, o.options).out;
  if (bf16() || GetParam().device == c10::DeviceType::CPU)
    expect_identical(out, o.v, "out");
  else
    expect_near(out, fp64(o.v), 1e-6, "out");  // CUDA multiplies FP32 as three TF32 products, which hold 22 bits
}

TEST_P(AttentionTest, PackedDocuments) {
  for (const int64_t dim : {64, 512})
    for (const int64_t window : {0, 9}) {
      const Case c{.batch = 1, .tokens = 150, .query_heads = 4, .kv_heads = 2, .dim = dim, .window = window, .starts = {0, 1, 60, 60, 131, 150}};
      expect_agreement(c, operands_of(c), "documents, D " + std::to_string(dim) + " window " + std::to_string(window));
    }
}

TEST_P(AttentionTest, ANeighbourDocumentChangesNothing) {
  const Case c{.batch = 1, .tokens = 150, .query_heads = 4, .kv_heads = 2, .dim = 64, .starts = {0, 70, 150}};
  // CUDA kernels add to dq atomically, in any order.
  expect_no_influence(operands_of(c), 70, /*repeats=*/GetParam().device == c10::DeviceType::CPU);
}

TEST_P(AttentionTest, HeadGroupsAddUpToTheWhole) {
  const Case c{.batch = 1, .tokens = 140, .query_heads = 8, .kv_heads = 2, .dim = 64};
  const Operands o = operands_of(c);
  const AttentionForward whole = attention_forward(o.q, o.k, o.v, o.options);
  const AttentionBackward gradients = attention_backward(o.dout, o.q, o.k, o.v, whole.out, whole.lse, o.options);
  at::Tensor dk = at::zeros_like(o.k, at::kFloat), dv = at::zeros_like(o.v, at::kFloat);
  const at::Tensor dk_sizes = fp64(gradients.dk).abs(), dv_sizes = fp64(gradients.dv).abs();  // of everything that was rounded on the way
  for (int64_t head = 0; head < 8; head += 2) {  // two of the four query heads of a key/value head at a time
    const at::Tensor q = o.q.narrow(2, head, 2), k = o.k.narrow(2, head / 4, 1), v = o.v.narrow(2, head / 4, 1);
    const AttentionForward part = attention_forward(q, k, v, o.options);
    expect_near(part.out, fp64(whole.out.narrow(2, head, 2)), rounding(), "out");
    expect_near(part.lse, fp64(whole.lse.narrow(1, head, 2)), 2e-5, "lse");
    const AttentionBackward slice = attention_backward(o.dout.narrow(2, head, 2), q, k, v, part.out, part.lse, o.options);
    expect_near(slice.dq, fp64(gradients.dq.narrow(2, head, 2)), rounding(), "dq");
    dk.narrow(2, head / 4, 1).add_(slice.dk);
    dv.narrow(2, head / 4, 1).add_(slice.dv);
    dk_sizes.narrow(2, head / 4, 1).add_(fp64(slice.dk).abs());
    dv_sizes.narrow(2, head / 4, 1).add_(fp64(slice.dv).abs());
  }
  EXPECT_LE(((fp64(dk) - fp64(gradients.dk)).abs() / (dk_sizes + dk_sizes.mean())).max().item<double>(), rounding()) << "dk";
  EXPECT_LE(((fp64(dv) - fp64(gradients.dv)).abs() / (dv_sizes + dv_sizes.mean())).max().item<double>(), rounding()) << "dv";
}

/// Backward passes on CUDA are deterministic while it lives.
class Deterministic {
 public:
  Deterministic() { set_deterministic_attention(true); }
  ~Deterministic() { set_deterministic_attention(false); }
};

/// On CUDA the backward reads what cuDNN's, FlashAttention-2's or the memory-efficient forward left.
class DeterministicAttentionTest : public AttentionTest {
 protected:
  void expect_repeated(const Case& c, const std::string& what) {
    const Deterministic deterministic;
    const Operands o = operands_of(c);
    const AttentionForward forward = attention_forward(o.q, o.k, o.v, o.options);
    const AttentionBackward once = attention_backward(o.dout, o.q, o.k, o.v, forward.out, forward.lse, o.options);
    expect_agreement(c, o, forward, once, what);
    const AttentionBackward again = attention_backward(o.dout, o.q, o.k, o.v, forward.out, forward.lse, o.options);
    expect_identical(once.dq, again.dq, what + " dq");
    expect_identical(once.dk, again.dk, what + " dk");
    expect_identical(once.dv, again.dv, what + " dv");
  }
};

TEST_P(DeterministicAttentionTest, RepeatsExactly) {
  expect_repeated({.batch = 2, .tokens = 260, .query_heads = 8, .kv_heads = 2, .dim = 64}, "D 64");
  expect_repeated({.batch = 1, .tokens = 600, .query_heads = 8, .kv_heads = 1, .dim = 256}, "D 256");
  expect_repeated({.batch = 1, .tokens = 300, .query_heads = 4, .kv_heads = 2, .dim = 128, .window = 70}, "window");
  expect_repeated({.batch = 1, .tokens = 400, .query_heads = 8, .kv_heads = 2, .dim = 128, .starts = {0, 1, 60, 60, 131, 257, 400}}, "documents");
}

INSTANTIATE_TEST_SUITE_P(Places, DeterministicAttentionTest, all_places(), testing::place_name);

TEST_P(AttentionTest, OneBackendReadsAnothersResults) {
  const bool cpu = GetParam().device == c10::DeviceType::CPU;
  if (bf16() == cpu) GTEST_SKIP() << "one backend only";
  const Case c{.batch = 1, .tokens = 256, .query_heads = 4, .kv_heads = 2, .dim = 128};
  Operands o = operands_of(c);
  o.options.backend = cpu ? AttentionBackend::kCpuBlocked : AttentionBackend::kFlash2;
  const AttentionForward kept = attention_forward(o.q, o.k, o.v, o.options);
  o.options.backend = cpu ? AttentionBackend::kCpuFlash : AttentionBackend::kCudnn;
  // Against the reference that reads the same O: between two backends, both backends' roundings would count.
  expect_agreement(c, o, kept, attention_backward(o.dout, o.q, o.k, o.v, kept.out, kept.lse, o.options), "another's results");
}

TEST_P(AttentionTest, WhatCannotBeMeantIsRefused) {
  const Case c{.batch = 2, .tokens = 8, .query_heads = 4, .kv_heads = 2, .dim = 16};
  Operands o = operands_of(c);
  o.options.documents = pack_documents(std::vector<int32_t>{0, 3, 8}, o.q.device());
  EXPECT_THROW(attention_forward(o.q, o.k, o.v, o.options), Error) << "documents in a batch";
  o.options.documents = {};
  o.options.scale = 0;
  EXPECT_THROW(attention_forward(o.q, o.k, o.v, o.options), Error) << "no scale";
  o.options.scale = 1;
  EXPECT_THROW(attention_forward(o.q.narrow(2, 0, 3), o.k, o.v, o.options), Error) << "3 query heads on 2 key heads";
  EXPECT_THROW(pack_documents(std::vector<int32_t>{0, 5, 4}, o.q.device()), Error) << "a document of -1 tokens";
}

INSTANTIATE_TEST_SUITE_P(Places, AttentionTest, all_places(), testing::place_name);

/// Attention made of matrix products, on the device that needs it and on the CPU.
class TiledAttentionTest : public AttentionTest {
 protected:
  bool keeps_probabilities() const override { return false; }
  void expect_tiled(const Case& c, const std::string& what) {
    Operands o = operands_of(c);
    o.options.backend = AttentionBackend::kTiled;
    expect_agreement(c, o, what);
  }
};

TEST_P(TiledAttentionTest, HeadDimensionsAndGroups) {
  for (const int64_t dim : {16, 36, 512})
    for (const int64_t ratio : {1, 3, 8}) {
      expect_tiled({.batch = 3, .tokens = 45, .query_heads = 2 * ratio, .kv_heads = 2, .dim = dim}, "D " + std::to_string(dim) + " ratio " + std::to_string(ratio));
    }
}

TEST_P(TiledAttentionTest, OneTokenAndLongerThanABlock) {
  for (const int64_t tokens : {1, 2, 129, 300, 521}) expect_tiled({.batch = 2, .tokens = tokens, .query_heads = 4, .kv_heads = 1, .dim = 64}, "S " + std::to_string(tokens));
}

TEST_P(TiledAttentionTest, Windows) {
  for (const int64_t window : {1, 2, 31, 128, 299, 300, 1000}) {
    expect_tiled({.batch = 2, .tokens = 300, .query_heads = 4, .kv_heads = 2, .dim = 64, .window = window}, "window " + std::to_string(window));
  }
}

TEST_P(TiledAttentionTest, PackedDocuments) {
  for (const int64_t window : {0, 9, 70})
    expect_tiled({.batch = 1, .tokens = 400, .query_heads = 8, .kv_heads = 2, .dim = 72, .window = window, .starts = {0, 1, 60, 60, 131, 257, 400}}, "window " + std::to_string(window));
}

TEST_P(TiledAttentionTest, ANeighbourDocumentChangesNothing) {
  Operands o = operands_of({.batch = 1, .tokens = 350, .query_heads = 4, .kv_heads = 2, .dim = 64, .starts = {0, 70, 350}});
  o.options.backend = AttentionBackend::kTiled;
  expect_no_influence(o, 70, /*repeats=*/true);
}

TEST_P(TiledAttentionTest, RepeatsExactly) {
  const Case c{.batch = 2, .tokens = 600, .query_heads = 8, .kv_heads = 2, .dim = 64};
  Operands o = operands_of(c);
  o.options.backend = AttentionBackend::kTiled;
  const AttentionForward forward = attention_forward(o.q, o.k, o.v, o.options);
  const AttentionBackward once = attention_backward(o.dout, o.q, o.k, o.v, forward.out, forward.lse, o.options);
  const AttentionBackward again = attention_backward(o.dout, o.q, o.k, o.v, forward.out, forward.lse, o.options);
  expect_identical(once.dq, again.dq, "dq");
  expect_identical(once.dk, again.dk, "dk");
  expect_identical(once.dv, again.dv, "dv");
}

TEST_P(TiledAttentionTest, FewScoresAtOnceAreEnough) {
  const Case c{.batch = 3, .tokens = 45, .query_heads = 6, .kv_heads = 2, .dim = 32};
  const Operands o = operands_of(c);
  const AttentionOperands operands{o.q, o.k, o.v, o.options};
  for (const int64_t most : {1, 1500, 6100, 12500, 25000}) {  // one row, part of a sequence, one head, a sequence, two sequences
    const AttentionForward forward = attention_forward_tiled(operands, most);
    expect_agreement(c, o, forward, attention_backward_tiled(operands, {o.dout, forward.out, forward.lse}, most), std::to_string(most) + " scores");
  }
}

TEST_P(TiledAttentionTest, KeysAreSummedInParts) {
  const Case c{.batch = 2, .tokens = 301, .query_heads = 6, .kv_heads = 2, .dim = 64};
  const Operands o = operands_of(c);
  const AttentionOperands operands{o.q, o.k, o.v, o.options};
  for (const int64_t keys : {8, 104, 152}) {  // many parts, a rest of another length, two parts of the last blocks only
    const AttentionForward forward = attention_forward_tiled(operands, kTiledScores, keys);
    expect_agreement(c, o, forward, attention_backward_tiled(operands, {o.dout, forward.out, forward.lse}, kTiledScores, keys), std::to_string(keys) + " keys");
  }
}

INSTANTIATE_TEST_SUITE_P(Places, TiledAttentionTest, all_places(), testing::place_name);

TEST(TiledShapeTest, ScoresAreBounded) {
  AttentionProblem problem{.batch = 4, .query_heads = 16, .kv_heads = 2, .head_dim = 512};
  for (const int64_t tokens : {1, 100, 4096, 32768, 262144})
    for (const int64_t window : {0, 1024}) {
      problem.tokens = tokens;
      problem.window_tokens = window;
      const TiledShape shape = tiled_shape(problem);
      EXPECT_LE(shape.pairs * shape.tokens * 8 * shape.keys, kTiledScores) << tokens;
      EXPECT_TRUE(shape.pairs >= 1 && shape.tokens >= 1 && shape.keys >= shape.tokens) << tokens;
      EXPECT_GE(attention_workspace_bytes(problem, true), 2 * shape.pairs * shape.tokens * 8 * shape.keys * 4);
    }
  problem.tokens = 4096;
  problem.window_tokens = 0;
  EXPECT_EQ(tiled_shape(problem, 32 << 20).tokens, 256);
  EXPECT_EQ(tiled_shape(problem, 32 << 20).pairs, 4);  // two sequences
}

TEST(AttentionBackendTest, IsChosenByProblem) {
  AttentionProblem problem{.tokens = 4096, .query_heads = 16, .kv_heads = 2, .head_dim = 256};
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCudnn);
  problem.window_tokens = 1024;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kFlash2);
  problem.window_tokens = 4096;  // sees everything
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCudnn);
  problem.window_tokens = 0;
  problem.documents = true;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kFlash2);
  problem.documents = false;
  problem.head_dim = 512;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kTiled);
  problem.dtype = at::kFloat;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kTiled);
  problem.dtype = at::kBFloat16;
  problem.head_dim = 256;
  problem.compute_capability = 80;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kFlash2);
  problem.compute_capability = 90;
  problem.dtype = at::kFloat;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kMemEfficient);
  problem.dtype = at::kBFloat16;
  problem.batch = 2;
  problem.tokens = 512 * 1024;  // a batch stride of 2^31 elements
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kFlash2);
  problem.batch = 1;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCudnn);
  problem.device = c10::DeviceType::CPU;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCpuBlocked);
  problem.dtype = at::kFloat;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCpuFlash);
  problem.window_tokens = 128;
  EXPECT_EQ(choose_attention_backend(problem), AttentionBackend::kCpuBlocked);
}

TEST(AttentionBackendTest, DeterministicBackwardsAreMadeOfProducts) {
  for (const int64_t window : {0, 1024})
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      AttentionProblem problem{.dtype = dtype, .tokens = 128 * 1024, .query_heads = 16, .kv_heads = 2, .head_dim = 256, .window_tokens = window};
      const AttentionBackend usual = choose_attention_backend(problem);
      EXPECT_EQ(choose_attention_backend(problem, /*backward=*/true), usual);
      problem.deterministic = true;
      EXPECT_EQ(choose_attention_backend(problem), usual);
      EXPECT_EQ(choose_attention_backend(problem, /*backward=*/true), AttentionBackend::kTiled);
      problem.device = c10::DeviceType::CPU;
      EXPECT_EQ(choose_attention_backend(problem, /*backward=*/true), choose_attention_backend(problem));
    }
}

TEST(AttentionBackendTest, WorkspaceMatchesWhatWasMeasured) {
  // cuDNN backward, H200, 128K tokens, D 256: 4.0 GiB beside the results for 16 query heads, 0.5 for 2.
  AttentionProblem problem{.tokens = 128 * 1024, .query_heads = 16, .kv_heads = 2, .head_dim = 256};
  const double gib = 1024.0 * 1024 * 1024;
  EXPECT_NEAR(attention_workspace_bytes(problem, true) / gib, 4.0, 0.05);
  problem.query_heads = 2;
  problem.kv_heads = 1;
  EXPECT_NEAR(attention_workspace_bytes(problem, true) / gib, 0.5, 0.01);
  EXPECT_EQ(attention_workspace_bytes(problem, false), 0);
}

}  // namespace
}  // namespace oom::ops
