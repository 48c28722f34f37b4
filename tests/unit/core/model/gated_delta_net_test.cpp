#include "oom/gated_delta_net.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "../ops/delta_rule_reference.h"
#include "../ops/poisoned.h"

namespace oom {
namespace {

using namespace ops::testing;

enum Position { kInputNorm, kQkv, kZ, kA, kB, kConv, kALog, kDtBias, kStateNorm, kOutput, kParameters };

/// 2 key heads of 8, 4 value heads of 16, 3 taps: every size differs from every other. The epsilons inside are large: with small ones the output norm
/// hides the scale of what it normalises, whose gradient then is a difference of equals.
const GatedDeltaNetSettings kSettings{.hidden = 24, .key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16, .taps = 3, .l2_epsilon = 0.05,
                                      .input_norm = {kInputNorm, 1e-6, ops::NormFlavour::kZeroCentred}, .output_norm = {kStateNorm, 0.02, ops::NormFlavour::kGated},
                                      .qkv = kQkv, .z = kZ, .a = kA, .b = kB, .conv = kConv, .a_log = kALog, .dt_bias = kDtBias, .output = kOutput};
constexpr int64_t kChannels = 2 * 2 * 8 + 4 * 16;

class GatedDeltaNetTest : public PoisonedTest {
 protected:
  void SetUp() override {
    PoisonedTest::SetUp();
    if (IsSkipped()) return;
    weights_ = {random({24}, 0.3),         random({kChannels, 24}, 0.3), random({64, 24}, 0.3), random({4, 24}, 0.3), random({4, 24}, 0.3), random({kChannels, 1, 3}, 0.6),
                random({4}, 0.5),          random({4}, 0.5),             random({16}, 0.5),     random({24, 64}, 0.2)};
  }

  /// A batch, and its documents where `starts` is not empty.
  SequenceInfo sequences(int64_t batch, int64_t length, const std::vector<int64_t>& starts = {}) {
    SequenceInfo info{.batch = batch, .length = length, .positions = {}, .document_starts = {}, .host_document_starts = {}, .longest_document = length};
    if (!starts.empty()) {
      host_.assign(starts.begin(), starts.end());
      info.document_starts = int32(starts);
      info.host_document_starts = host_;
    }
    return info;
  }

  std::vector<at::Tensor> new_sums() {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& weight : weights_) sums.push_back(at::zeros(weight.sizes(), fp32()));
    return sums;
  }
  static LayerGradients sinks(const std::vector<at::Tensor>& sums) {
    LayerGradients sinks;
    for (const at::Tensor& sum : sums) sinks.push_back({sum, true});
    return sinks;
  }

  /// The sublayer in FP64 as its formulas say, one document after another.
  static at::Tensor reference(const at::Tensor& x, const std::vector<at::Tensor>& w, const std::vector<int64_t>& starts) {
    const at::Tensor n = x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * (1 + w[kInputNorm]);
    const at::Tensor mixed = n.matmul(w[kQkv].t()), z = n.matmul(w[kZ].t()).unflatten(1, {4, 16});
    std::vector<at::Tensor> documents;
    for (size_t d = 0; d + 1 < starts.size(); ++d) {
      const int64_t begin = starts[d], rows = starts[d + 1] - begin;
      if (rows == 0) continue;
      const at::Tensor padded = at::cat({at::zeros({2, kChannels}, mixed.options()), mixed.narrow(0, begin, rows)});
      at::Tensor conv = at::zeros({rows, kChannels}, mixed.options());
      for (int64_t j = 0; j < 3; ++j) conv = conv + padded.narrow(0, j, rows) * w[kConv].select(1, 0).select(1, j);
      conv = at::silu(conv);
      const auto unit = [](const at::Tensor& heads) { return heads * at::rsqrt(heads.pow(2).sum(-1, true) + 0.05); };
      const at::Tensor part = n.narrow(0, begin, rows);
      DeltaRuleReference rule{unit(conv.narrow(1, 0, 16).unflatten(1, {2, 8})), unit(conv.narrow(1, 16, 16).unflatten(1, {2, 8})), conv.narrow(1, 32, 64).unflatten(1, {4, 16}),
                              -at::exp(w[kALog]) * at::softplus(part.matmul(w[kA].t()) + w[kDtBias]), at::sigmoid(part.matmul(w[kB].t())),
                              at::zeros({1, 4, 8, 16}, mixed.options()), 1 / std::sqrt(8.0), {}};
      documents.push_back(rule.run().out);
    }
    const at::Tensor out = at::cat(documents);
    const at::Tensor normed = out * at::rsqrt(out.pow(2).mean(-1, true) + 0.02) * w[kStateNorm] * at::silu(z);
    return x + normed.flatten(1).matmul(w[kOutput].t());
  }

  double tolerance() const { return bf16() ? 2e-2 : 5e-6; }

  void check(const SequenceInfo& info, const std::vector<int64_t>& starts, const std::string& what) {
    const at::Tensor x = random({info.batch * info.length, 24}), dy = random(x.sizes().vec());
    std::vector<at::Tensor> exact;
    for (const at::Tensor& weight : weights_) exact.push_back(fp64(weight).requires_grad_());
    const at::Tensor x64 = fp64(x).requires_grad_(), y64 = reference(x64, exact, starts);
    (y64 * fp64(dy)).sum().backward();

    const std::unique_ptr<Mixer> mixer = make_gated_delta_net(kSettings);
    const std::vector<at::Tensor> sums = new_sums();
    LayerGradients gradients = sinks(sums);
    const MixerCall call{.weights = weights_, .gradients = &gradients, .sequence = info};
    const at::Tensor y = mixer->forward(x, call, nullptr);
    expect_near_overall(y, y64, tolerance(), what + ": y");
    Saved saved;
    expect_identical(mixer->replay(x, call, nullptr, saved), y, what + ": replay");
    expect_near_overall(mixer->backward(dy, x, saved, call), x64.grad(), tolerance(), what + ": dx");
    EXPECT_TRUE(saved.tensors.empty());
    for (int p = 0; p < kParameters; ++p) expect_near_overall(sums[p], exact[p].grad(), tolerance(), what + ": gradient of parameter " + std::to_string(p));
  }

  /// Runs slices of `rows` tokens one after another, forward, replayed and in reverse, and compares them with the whole.
  void check_slices(const SequenceInfo& info, int64_t rows, const std::string& what) {
    const at::Tensor x = random({info.batch * info.length, 24}), dy = random(x.sizes().vec());
    const std::unique_ptr<Mixer> mixer = make_gated_delta_net(kSettings);
    const std::vector<at::Tensor> whole_sums = new_sums(), part_sums = new_sums();
    LayerGradients whole_sinks = sinks(whole_sums), part_sinks = sinks(part_sums);
    const MixerCall whole{.weights = weights_, .gradients = &whole_sinks, .sequence = info};
    Saved saved;
    const at::Tensor y = mixer->replay(x, whole, nullptr, saved);
    const at::Tensor dx = mixer->backward(dy, x, saved, whole);

    const auto take = [&](const at::Tensor& all, const Slice& slice) {
      return all.unflatten(0, {info.batch, info.length}).narrow(1, slice.begin, slice.end - slice.begin).flatten(0, 1).contiguous();
    };
    std::vector<Slice> slices;
    for (int64_t begin = 0; begin < info.length; begin += rows) slices.push_back({Axis::kSequence, begin, std::min(begin + rows, info.length)});
    std::vector<Saved> kept(slices.size());
    CarriedState forward_state, replay_state, back;
    for (size_t i = 0; i < slices.size(); ++i) {
      const at::Tensor part = take(x, slices[i]);
      const at::Tensor part_y = mixer->forward(part, {.weights = weights_, .sequence = info, .slice = slices[i], .state = &forward_state}, nullptr);
      expect_near_overall(part_y, fp64(take(y, slices[i])), bf16() ? 2e-3 : 1e-6, what + ": y of slice " + std::to_string(i));
      expect_identical(mixer->replay(part, {.weights = weights_, .sequence = info, .slice = slices[i], .state = &replay_state}, nullptr, kept[i]), part_y, what + ": replay");
    }
    for (size_t i = slices.size(); i-- > 0;) {
      const MixerCall call{.weights = weights_, .gradients = &part_sinks, .sequence = info, .slice = slices[i], .state = &back};
      expect_near_overall(mixer->backward(take(dy, slices[i]), take(x, slices[i]), kept[i], call), fp64(take(dx, slices[i])), bf16() ? 5e-3 : 2e-6,
                          what + ": dx of slice " + std::to_string(i));
    }
    for (const at::Tensor& nothing : back.tensors) EXPECT_EQ(nothing.abs().sum().item<float>(), 0.0f) << what << ": a gradient leaves the first token";
    for (int p = 0; p < kParameters; ++p) expect_near_overall(part_sums[p], fp64(whole_sums[p]), bf16() ? 5e-3 : 1e-5, what + ": parameter " + std::to_string(p));
  }

  LayerWeights weights_;
  std::vector<int32_t> host_;
};

TEST_P(GatedDeltaNetTest, AgreesWithItsFormulas) {
  check(sequences(2, 70), {0, 70, 140}, "two sequences");
  for (const int64_t length : {1, 2, 65}) check(sequences(1, length), {0, length}, "length " + std::to_string(length));
  check(sequences(2, 75, {0, 0, 30, 75, 139, 150, 150}), {0, 0, 30, 75, 139, 150, 150}, "documents");
}

TEST_P(GatedDeltaNetTest, SlicesThatCarryStatesAreTheWhole) {
  check_slices(sequences(1, 200), 64, "one sequence");
  check_slices(sequences(2, 130), 64, "two sequences");
  check_slices(sequences(1, 70), 192, "one slice");
}

TEST_P(GatedDeltaNetTest, SlicesHeedDocumentsThatBeginAndEndAnywhere) {
  // Edges inside slices, at their borders, one token beside them, and documents over several slices.
  check_slices(sequences(1, 256, {0, 10, 63, 64, 65, 127, 130, 192, 256}), 64, "edges beside borders");
  check_slices(sequences(1, 256, {0, 100, 256}), 64, "long documents");
  check_slices(sequences(2, 128, {0, 64, 128, 190, 192, 256}), 64, "two sequences, one fresh at the border");
}

TEST_P(GatedDeltaNetTest, ADocumentIgnoresItsNeighbour) {
  const SequenceInfo info = sequences(1, 90, {0, 33, 90});
  const std::unique_ptr<Mixer> mixer = make_gated_delta_net(kSettings);
  at::Tensor x = random({90, 24}), dy = random({90, 24});
  dy.narrow(0, 0, 33).zero_();
  const auto run = [&] {
    std::vector<at::Tensor> results = new_sums();
    LayerGradients gradients = sinks(results);
    const MixerCall call{.weights = weights_, .gradients = &gradients, .sequence = info};
    Saved saved;
    results.push_back(mixer->replay(x, call, nullptr, saved).narrow(0, 33, 57).clone());
    results.push_back(mixer->backward(dy, x, saved, call));
    return results;
  };
  const std::vector<at::Tensor> before = run();
  x.narrow(0, 0, 33).mul_(-0.7);
  const std::vector<at::Tensor> after = run();
  for (size_t i = 0; i < before.size(); ++i) expect_identical(before[i], after[i], "result " + std::to_string(i));
}

TEST_P(GatedDeltaNetTest, PricesGrowWithTheRowsOfASlice) {
  const std::unique_ptr<Mixer> mixer = make_gated_delta_net(kSettings);
  const SublayerCost whole = mixer->cost(Pass::kReplay, 2, 256, 2, {}), half = mixer->cost(Pass::kReplay, 2, 256, 2, {Axis::kSequence, 0, 128});
  EXPECT_DOUBLE_EQ(whole.gemm_flops, 2 * half.gemm_flops);
  EXPECT_EQ(whole.saved_bytes, 2 * half.saved_bytes);
  // What replay puts aside, byte by byte.
  const at::Tensor x = random({512, 24});
  const SequenceInfo info = sequences(2, 256);
  Saved saved;
  mixer->replay(x, {.weights = weights_, .sequence = info}, nullptr, saved);
  int64_t bytes = 0;
  for (const at::Tensor& tensor : saved.tensors) bytes += tensor.defined() ? tensor.numel() * tensor.element_size() : 0;
  EXPECT_EQ(mixer->cost(Pass::kReplay, 2, 256, bf16() ? 2 : 4, {}).saved_bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Places, GatedDeltaNetTest, all_places(), place_name);

}  // namespace
}  // namespace oom
