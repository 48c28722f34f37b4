#include "oom/ops/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <set>

#include "poisoned.h"

namespace oom::ops {
namespace {

using namespace testing;

class RouterTest : public PoisonedTest {
 protected:
  /// The weights of given choices, differentiable.
  static at::Tensor reference(const at::Tensor& logits, const at::Tensor& indices, bool renormalise, const at::Tensor& scale) {
    at::Tensor w = at::softmax(logits, -1).gather(1, indices);
    if (renormalise) w = w / w.sum(-1, true);
    return scale.defined() ? w * scale.index_select(0, indices.reshape({-1})).view(indices.sizes()) : w;
  }
  static at::Tensor as_index(const at::Tensor& indices) { return indices.to(at::kCPU).to(at::kLong); }
};

TEST_P(RouterTest, WeightsAndGradientsAgreeWithAutograd) {
  for (const auto& [tokens, experts, top_k] : {std::tuple<int64_t, int64_t, int64_t>{50, 8, 2}, {33, 128, 8}, {9, 256, 8}, {3, 1024, 16}, {5, 16, 16},
                                               {70, 33, 1}, {4100, 64, 6}})
    for (const bool renormalise : {true, false})
      for (const bool scaled : {false, true}) {
        const at::Tensor logits = random({tokens, experts}, 2.0);
        const at::Tensor scale = scaled ? random({experts}) : at::Tensor();
        const at::Tensor d_weights = random({tokens, top_k}).to(at::kFloat);
        const at::Tensor aux = random({experts}).to(at::kFloat);
        const RouterSettings settings{top_k, renormalise, false};
        const Routing routing = route_forward(logits, settings, scale);
        const at::Tensor indices = as_index(routing.indices);
        at::Tensor logits64 = fp64(logits).requires_grad_();
        at::Tensor scale64 = scaled ? fp64(scale).requires_grad_() : at::Tensor();
        const at::Tensor w64 = reference(logits64, indices, renormalise, scale64);
        expect_rounded(routing.weights, w64.detach(), "weights", 3e-6);
        // The K largest: every chosen logit is at least as large as the largest of the others.
        const at::Tensor chosen = fp64(logits).gather(1, indices);
        const at::Tensor others = fp64(logits).scatter(1, indices, -1e300);
        EXPECT_TRUE((std::get<0>(chosen.min(1)) >= std::get<0>(others.max(1))).all().item<bool>());
        ((w64 * fp64(d_weights)).sum() + (at::softmax(logits64, -1) * fp64(aux)).sum()).backward();
        const at::Tensor start = at::full({experts}, 1.0, fp32());
        const at::Tensor d_logits =
            route_backward({d_weights, aux}, logits, routing, settings, scale, scaled ? GradientSink{start, true} : GradientSink{});
        expect_rounded(d_logits, logits64.grad(), "d_logits", 3e-6);
        if (scaled) expect_near(start, scale64.grad() + 1.0, 1e-5, "d_scale");
      }
}

TEST_P(RouterTest, EachPartOfTheGradientMayBeMissing) {
  const at::Tensor logits = random({6, 16}), aux = random({16}).to(at::kFloat), d_weights = random({6, 4}).to(at::kFloat);
  const RouterSettings settings{4, true, false};
  const Routing routing = route_forward(logits, settings);
  at::Tensor only_aux = fp64(logits).requires_grad_(), only_weights = fp64(logits).requires_grad_();
  (at::softmax(only_aux, -1) * fp64(aux)).sum().backward();
  (reference(only_weights, as_index(routing.indices), true, {}) * fp64(d_weights)).sum().backward();
  expect_rounded(route_backward({{}, aux}, logits, routing, settings), only_aux.grad(), "auxiliary loss alone", 3e-6);
  expect_rounded(route_backward({d_weights, {}}, logits, routing, settings), only_weights.grad(), "weights alone", 3e-6);
  EXPECT_EQ(route_backward({}, logits, routing, settings).abs().sum().item<float>(), 0.0f);
}

TEST_P(RouterTest, RoundedWeightsAreOfTheLogitsType) {
  const at::Tensor logits = random({40, 32});
  const Routing exact = route_forward(logits, {4, true, false}), rounded = route_forward(logits, {4, true, true});
  expect_identical(rounded.weights, exact.weights.to(GetParam().dtype).to(at::kFloat), "rounded weights");
  expect_identical(rounded.indices, exact.indices, "indices");
}

TEST_P(RouterTest, TiesGoToTheLowerExpert) {
  const Routing equal = route_forward(at::zeros({3, 40}, options()), {4, true, false});
  expect_identical(equal.indices, int32({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}).view({3, 4}), "all equal");
  at::Tensor logits = at::zeros({1, 70}, options());
  for (const int64_t e : {69, 5, 37}) logits[0][e].fill_(1.0);
  expect_identical(route_forward(logits, {5, true, false}).indices, int32({5, 37, 69, 0, 1}).view({1, 5}), "three equal, then the rest");
}

TEST_P(RouterTest, DescendingOrder) {
  const at::Tensor weights = route_forward(random({64, 96}), {8, false, false}).weights;
  EXPECT_TRUE((weights.narrow(1, 0, 7) >= weights.narrow(1, 1, 7)).all().item<bool>());
}

TEST_P(RouterTest, LogitsThatAreNoNumbersStillGiveDistinctExperts) {
  at::Tensor logits = random({3, 40});
  logits[0].fill_(std::numeric_limits<double>::quiet_NaN());
  logits[1].narrow(0, 3, 36).fill_(-std::numeric_limits<double>::infinity());
  logits[2][7].fill_(std::numeric_limits<double>::quiet_NaN());
  const Routing routing = route_forward(logits, {6, true, false});
  const at::Tensor indices = as_index(routing.indices);
  for (int64_t t = 0; t < 3; ++t) {
    std::set<int64_t> distinct;
    for (int64_t k = 0; k < 6; ++k) {
      const int64_t e = indices[t][k].item<int64_t>();
      EXPECT_TRUE(e >= 0 && e < 40) << e;
      distinct.insert(e);
    }
    EXPECT_EQ(distinct.size(), 6u) << "token " << t;
  }
  EXPECT_TRUE(routing.weights[0].isnan().all().item<bool>()) << "the fault must stay visible";
  EXPECT_FALSE(routing.weights[1].isnan().any().item<bool>());
  EXPECT_TRUE(routing.weights[2].isnan().all().item<bool>());
}

TEST_P(RouterTest, StatisticsAddUpOverCalls) {
  const int64_t experts = 48;
  const at::Tensor first = random({700, experts}), second = random({3, experts}), none = random({0, experts});
  const RoutingStatistics statistics = no_routing_statistics(experts, first.device());
  at::Tensor counts = at::zeros({experts}, at::kLong), sums = at::zeros({experts}, at::kDouble);
  for (const at::Tensor& logits : {first, second, none}) {
    const Routing routing = route_forward(logits, {4, true, false});
    add_routing_statistics(statistics, logits, routing.indices);
    sums += at::softmax(fp64(logits), -1).sum(0);
    const at::Tensor flat = as_index(routing.indices).reshape({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) counts[flat[i].item<int64_t>()] += 1;
  }
  expect_identical(statistics.counts.to(at::kCPU), counts, "counts");
  expect_near(statistics.probability_sums, sums, 1e-6, "probability sums");
  const RoutingStatistics again = no_routing_statistics(experts, first.device());
  for (const at::Tensor& logits : {first, second}) add_routing_statistics(again, logits, route_forward(logits, {4, true, false}).indices);
  expect_identical(again.probability_sums, statistics.probability_sums, "sums repeat bit for bit");
}

TEST_P(RouterTest, NoTokens) {
  const at::Tensor logits = random({0, 16}), scale = random({16}), sink = at::empty({16}, options());
  const RouterSettings settings{4, true, false};
  const Routing routing = route_forward(logits, settings, scale);
  EXPECT_EQ(routing.indices.sizes(), (std::vector<int64_t>{0, 4}));
  route_backward({routing.weights, {}}, logits, routing, settings, scale, {sink, false});
  EXPECT_EQ(sink.abs().sum().item<float>(), 0.0f);
}

TEST_P(RouterTest, TooManyChoicesAreRefused) {
  EXPECT_THROW(route_forward(random({2, 4}), {5, true, false}), Error);
  EXPECT_THROW(route_forward(random({2, 1025}), {5, true, false}), Error);
}

INSTANTIATE_TEST_SUITE_P(Places, RouterTest, all_places(), place_name);

}  // namespace
}  // namespace oom::ops
