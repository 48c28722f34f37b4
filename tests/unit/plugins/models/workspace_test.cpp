// What each family's sublayers allocate beside what they are given and what they return, against what they tell the accountant. On the CPU in FP32, where
// an allocator can count. OOM_TINY_MODELS names a folder with the small models.
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cstdlib>
#include <filesystem>

#include "../../core/counting_allocator.h"
#include "base/file.h"
#include "runtime/session.h"
#include "runtime/sublayer_price.h"

namespace oom {
namespace {

using testing::counter;
using testing::Measured;
using testing::measure;

constexpr int64_t kBatch = 2, kLength = 512, kTokens = kBatch * kLength;
constexpr int64_t kSlack = 64 << 10;  // statistics of rows and the like are left out of prices

class Workspace : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("OOM_TINY_MODELS");
    ASSERT_NE(folder, nullptr) << "python tests/harness/tiny_models.py FOLDER writes what it is to name";
    const std::string text = base::read_text_file(std::filesystem::path(folder) / GetParam() / "config.json", 1 << 20);
    model_ = plugins_.load_model(text, "config.json", {}, /*with_operators=*/true);
    c10::SetCPUAllocator(&counter(), /*priority=*/255);
  }

  LayerWeights weights_of(int layer) const {
    LayerWeights weights;
    for (const ParameterSpec& spec : model_.description.parameters) {
      if (spec.layer == layer) weights.push_back(at::randn(spec.shape).mul_(0.1));
    }
    return weights;
  }
  static LayerGradients sinks_of(const LayerWeights& weights) {
    LayerGradients sinks;
    for (const at::Tensor& weight : weights) sinks.push_back({at::zeros(weight.sizes()), false});
    return sinks;
  }

  /// `told` covers what was measured and is not more than a quarter as much again.
  static void expect_close(int64_t told, int64_t measured, const std::string& what) {
    EXPECT_GE(told + kSlack, measured) << what;
    EXPECT_LE(told, measured + measured / 4 + kSlack) << what;
  }

  /// Of a call that frees what it was given to keep: beside that, its result included.
  static int64_t peak_of(const Measured& call) { return call.workspace_bytes + std::max<int64_t>(call.result_bytes, 0); }

  c10::InferenceMode inference_;
  runtime::PluginHost plugins_{{}};
  runtime::LoadedModel model_;
};

TEST_P(Workspace, OfFeedForwardsIsWhatTheyTell) {
  for (size_t layer = 0; layer < model_.description.layers.size(); ++layer) {
    const FeedForward& sublayer = *model_.operators.feed_forwards.at(layer);
    const LayerWeights weights = weights_of(static_cast<int>(layer));
    LayerGradients sinks = sinks_of(weights);
    const FeedForwardCall call{.weights = weights, .gradients = &sinks, .probability_gradient = {}, .statistics = {}};
    const int64_t hidden = model_.description.hidden;
    const at::Tensor y = at::randn({kTokens, hidden}), routed = at::randn({kTokens, hidden}), dz = at::randn({kTokens, hidden});
    const Plan plan{.workload = {.compute = ElementType::kFloat32}};
    const at::Tensor dweights = at::randn({kTokens, model_.description.routed.top_k});
    const std::string name = std::string(GetParam()) + " layer " + std::to_string(layer);
    Routing routing;
    FeedForwardFront front;
    Saved saved;
    at::Tensor z, dside, dy, dinput;
    expect_close(sublayer.cost(Pass::kForward, kTokens, 4).workspace_bytes, measure([&] { front = sublayer.front(y, call, routing, nullptr); }).workspace_bytes, name + " front");
    const Measured back = measure([&] { z = sublayer.back(y, routed, front, call, nullptr); });
    EXPECT_LE(back.workspace_bytes, runtime::row_price(4, kTokens, plan, hidden).workspace_bytes + kSlack) << name << " back";
    front = FeedForwardFront();
    front = sublayer.front(y, call, routing, &saved);
    if (sublayer.replays_back()) z = sublayer.back(y, routed, front, call, &saved);
    int64_t held = 0;
    for (const at::Tensor& tensor : saved.tensors) held += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    expect_close(sublayer.cost(Pass::kReplay, kTokens, 4).saved_bytes + sublayer.hands_on().saved_by_back * kTokens * hidden * 4, held, name + " saved");
    front = FeedForwardFront();
    at::Tensor drouted = sublayer.back_backward(dz, saved, call, dside, dy);
    const Measured backward = measure([&] { dinput = sublayer.front_backward(drouted, dweights, dside, dy, y, routing, saved, call); });
    expect_close(sublayer.cost(Pass::kBackward, kTokens, 4).workspace_bytes + static_cast<int64_t>(dinput.nbytes()), peak_of(backward), name + " backward");
  }
}

TEST_P(Workspace, OfMixersIsWhatTheyTell) {
  for (size_t layer = 0; layer < model_.description.layers.size(); ++layer) {
    const Mixer& sublayer = *model_.operators.mixers.at(layer);
    const LayerWeights weights = weights_of(static_cast<int>(layer));
    LayerGradients sinks = sinks_of(weights);
    const SequenceInfo sequence{.batch = kBatch, .length = kLength, .positions = at::arange(kLength, at::kInt).repeat({kBatch}), .document_starts = {}, .host_document_starts = {},
                                .longest_document = kLength};
    const MixerCall call{.weights = weights, .gradients = &sinks, .sequence = sequence};
    const at::Tensor x = at::randn({kTokens, model_.description.hidden}), dy = at::randn({kTokens, model_.description.hidden});
    const std::string name = std::string(GetParam()) + " layer " + std::to_string(layer) + " " + model_.description.layers[layer].mixer;
    Saved saved;
    at::Tensor y, dx;
    const Measured forward = measure([&] { y = sublayer.forward(x, call, nullptr); });
    y = at::Tensor();
    const Measured replay = measure([&] { y = sublayer.replay(x, call, nullptr, saved); });
    const int64_t held = replay.result_bytes - static_cast<int64_t>(y.nbytes());
    const auto told = [&](Pass pass) { return sublayer.cost(pass, kBatch, kLength, 4, {}); };
    expect_close(told(Pass::kReplay).saved_bytes, held, name + " saved");
    const Measured backward = measure([&] { dx = sublayer.backward(dy, x, saved, call); });
    if (sublayer.parts()) continue;  // attention is priced as CUDA's kernels do it
    expect_close(told(Pass::kForward).workspace_bytes, forward.workspace_bytes, name + " forward");
    expect_close(told(Pass::kReplay).workspace_bytes, replay.workspace_bytes, name + " replay");
    expect_close(told(Pass::kBackward).workspace_bytes + static_cast<int64_t>(dx.nbytes()), peak_of(backward), name + " backward");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Workspace, ::testing::Values("mixtral", "qwen3_moe", "qwen3_5_moe", "gemma4"), [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace oom
