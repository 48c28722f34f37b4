// Attention by head groups: rows taken in chunks give what rows taken at once give, and take less memory, as much as the accountant is told.
#include "model/grouped_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "../counting_allocator.h"
#include "../ops/poisoned.h"
#include "oom/ops/linear.h"

namespace oom {
namespace {

using ops::testing::expect_near_overall;
using ops::testing::PoisonedTest;

enum Position { kInputNorm, kQuery, kKey, kValue, kOutput, kQueryNorm, kKeyNorm, kOutputNorm, kParameters };
constexpr int64_t kHidden = 48, kHeads = 4, kKeys = 2, kDim = 8;
constexpr int64_t kWhole = 1 << 20;

NormSettings norm(int weight) { return {.weight = weight, .flavour = ops::NormFlavour::kZeroCentred}; }

AttentionSettings plain() {
  return {.hidden = kHidden, .query_heads = kHeads, .kv_heads = kKeys, .head_dim = kDim, .scale = 0.35, .rotary = {.theta = 100, .head_dim = kDim}, .input_norm = norm(kInputNorm), .query = kQuery,
          .key = kKey, .value = kValue, .output = kOutput};
}
AttentionSettings gated() {
  AttentionSettings settings = plain();
  settings.query_norm = norm(kQueryNorm);
  settings.key_norm = norm(kKeyNorm);
  settings.output_gate = true;
  return settings;
}
AttentionSettings shared() {
  AttentionSettings settings = plain();
  settings.query_norm = norm(kQueryNorm);
  settings.key_norm = norm(kKeyNorm);
  settings.value_norm = {.flavour = ops::NormFlavour::kPlain, .weightless = true};
  settings.output_norm = norm(kOutputNorm);
  settings.value = -1;
  return settings;
}

class GroupedAttentionTest : public PoisonedTest {
 protected:
  void SetUp() override {
    PoisonedTest::SetUp();
    ops::configure_math();
  }

  std::vector<at::Tensor> weights(const AttentionSettings& settings) {
    const int64_t query = settings.output_gate ? 2 : 1;
    return {random({settings.hidden}, 0.3),
            random({settings.query_heads * query * settings.head_dim, settings.hidden}, 0.2),
            random({settings.kv_heads * settings.head_dim, settings.hidden}, 0.2),
            random({settings.kv_heads * settings.head_dim, settings.hidden}, 0.2),
            random({settings.hidden, settings.query_heads * settings.head_dim}, 0.2),
            random({settings.head_dim}, 0.3),
            random({settings.head_dim}, 0.3),
            random({settings.hidden}, 0.3)};
  }
  SequenceInfo sequences(int64_t batch, int64_t length) const {
    return {.batch = batch, .length = length, .positions = at::arange(length, options().dtype(at::kInt)).repeat({batch}), .document_starts = {}, .host_document_starts = {}, .longest_document = length};
  }

  struct Results {
    Keep keep;
    at::Tensor dnormed;
    std::vector<at::Tensor> sums;
  };
  /// Forward and backward of every group of `group` heads.
  Results run(const AttentionSettings& settings, const std::vector<at::Tensor>& weights, const at::Tensor& x, const at::Tensor& dprojected, const SequenceInfo& info, int64_t group, int64_t row_chunk) const {
    const GroupedAttention attention(settings, row_chunk);
    Results results{{at::zeros({x.size(0), settings.query_heads * settings.head_dim}, x.options()), at::zeros({info.batch, settings.query_heads, info.length}, fp32())},
                    at::zeros(x.sizes(), fp32()), {}};
    LayerGradients sinks;
    for (const at::Tensor& weight : weights) sinks.push_back({results.sums.emplace_back(at::zeros(weight.sizes(), fp32())), true});
    const auto each = [&](const auto& body) {
      for (int64_t head = 0; head < settings.query_heads; head += group) body(MixerCall{.weights = weights, .gradients = &sinks, .sequence = info, .slice = {Axis::kHeadGroup, head, head + group}});
    };
    each([&](const MixerCall& call) { attention.attend(x, call, results.keep); });
    CarriedState key_sums;
    each([&](const MixerCall& call) { attention.attend_backward(dprojected, x, results.keep, call, key_sums, results.dnormed); });
    EXPECT_TRUE(key_sums.tensors.empty());
    return results;
  }
};

TEST_P(GroupedAttentionTest, ChunksOfRowsGiveWhatWholeRowsGive) {
  const SequenceInfo info = sequences(2, 19);
  int number = 0;
  for (const AttentionSettings& settings : {plain(), gated(), shared()}) {
    const std::vector<at::Tensor> weights = this->weights(settings);
    const at::Tensor x = random({38, kHidden}), dprojected = random({38, kHidden});
    for (const int64_t group : {1, 2, 4}) {
      const Results whole = run(settings, weights, x, dprojected, info, group, kWhole), cut = run(settings, weights, x, dprojected, info, group, 7);
      const std::string what = "settings " + std::to_string(number) + " group " + std::to_string(group);
      const double tolerance = bf16() ? 2e-3 : 1e-6;
      expect_near_overall(cut.keep.output, whole.keep.output, tolerance, what + " O");
      expect_near_overall(cut.keep.log_sum_exp, whole.keep.log_sum_exp, tolerance, what + " LSE");
      expect_near_overall(cut.dnormed, whole.dnormed, tolerance, what + " dnormed");
      for (size_t weight = 0; weight < weights.size(); ++weight) expect_near_overall(cut.sums[weight], whole.sums[weight], tolerance, what + " weight " + std::to_string(weight));
    }
    ++number;
  }
}

INSTANTIATE_TEST_SUITE_P(Places, GroupedAttentionTest, ops::testing::all_places(), ops::testing::place_name);

class GroupedAttentionMemory : public GroupedAttentionTest {
 protected:
  void SetUp() override {
    GroupedAttentionTest::SetUp();
    c10::SetCPUAllocator(&testing::counter(), /*priority=*/255);
  }
};

// The accountant is told of CUDA's kernels: here their scratch is exchanged for what those of the CPU take.
TEST_P(GroupedAttentionMemory, IsWhatTheAccountantIsTold) {
  constexpr int64_t kLength = 2048, kSlack = 128 << 10;  // statistics of rows, sums of norms
  const SequenceInfo info = sequences(1, kLength);
  for (AttentionSettings settings : {plain(), gated(), shared()}) {
    settings.hidden = 512;
    settings.head_dim = settings.rotary.head_dim = 64;
    settings.query_norm.weight = settings.query_norm.present() ? kQueryNorm : -1;
    const std::vector<at::Tensor> weights = this->weights(settings);
    const at::Tensor x = random({kLength, settings.hidden}), dprojected = random({kLength, settings.hidden}), dnormed = at::zeros(x.sizes(), fp32());
    const Keep keep{at::zeros({kLength, kHeads * settings.head_dim}, x.options()), at::zeros({1, kHeads, kLength}, fp32())};
    LayerGradients sinks;
    for (const at::Tensor& weight : weights) sinks.push_back({at::zeros(weight.sizes(), fp32()), true});
    const MixerCall call{.weights = weights, .gradients = &sinks, .sequence = info, .slice = {Axis::kHeadGroup, 0, 2}};
    const ops::AttentionProblem problem{.device = c10::DeviceType::CUDA, .dtype = at::kFloat, .batch = 1, .tokens = kLength, .query_heads = 2, .kv_heads = 1, .head_dim = settings.head_dim};
    const at::Tensor query = random({1, kLength, 2, settings.head_dim}), key = random({1, kLength, 1, settings.head_dim});
    ops::AttentionForward attended;
    ops::AttentionBackward gradient;
    const int64_t forward_scratch = testing::measure([&] { attended = ops::attention_forward(query, key, key, {.scale = settings.scale}); }).workspace_bytes;
    const int64_t backward_scratch = testing::measure([&] { gradient = ops::attention_backward(query, query, key, key, attended.out, attended.lse, {.scale = settings.scale}); }).workspace_bytes;
    for (const int64_t row_chunk : {kWhole, int64_t{256}}) {
      const GroupedAttention attention(settings, row_chunk);
      const auto told = [&](Pass pass, int64_t scratch) {
        return attention.cost(pass, 1, kLength, 4, call.slice).workspace_bytes - ops::attention_workspace_bytes(problem, pass == Pass::kAttendBackward) + scratch;
      };
      const std::string what = cat(settings.output_gate ? "gated" : settings.value < 0 ? "shared" : "plain", ", chunks of ", row_chunk);
      const int64_t forward = testing::measure([&] { attention.attend(x, call, keep); }).workspace_bytes;
      EXPECT_GE(told(Pass::kAttend, forward_scratch) + kSlack, forward) << what;
      CarriedState key_sums;
      const int64_t backward = testing::measure([&] { attention.attend_backward(dprojected, x, keep, call, key_sums, dnormed); }).workspace_bytes;
      EXPECT_GE(told(Pass::kAttendBackward, backward_scratch) + kSlack, backward) << what;
      EXPECT_LE(told(Pass::kAttendBackward, backward_scratch), backward + backward / 8 + kSlack) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, GroupedAttentionMemory, ::testing::Values(ops::testing::Place{c10::DeviceType::CPU, at::kFloat}), ops::testing::place_name);

}  // namespace
}  // namespace oom
