#include "ops/attention_tiled_rows.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/rows.h"

namespace oom::ops {
namespace {

template <typename Visit>
void for_each_row(const TiledBlock& block, const Visit& visit) {
  at::parallel_for(0, block.rows(), grain_rows(block.keys), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) visit(row, tiled_row(block, row));
  });
}

template <typename T>
void softmax(const TiledBlock& block) {
  for_each_row(block, [&](int64_t row, const TiledRow& place) {
    float* scores = block.scores + row * block.keys;
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t c = place.begin; c < place.end; ++c) largest = std::max(largest, block.scale * scores[c]);
    double sum = 0;
    for (int64_t c = place.begin; c < place.end; ++c) sum += std::exp(block.scale * scores[c] - largest);
    const float lse = largest + static_cast<float>(std::log(sum));
    block.lse[place.lse] = lse;
    const float reciprocal = static_cast<float>(1.0 / sum);
    std::vector<T> probability(static_cast<size_t>(block.keys), T(0.0f));
    for (int64_t c = place.begin; c < place.end; ++c)
      probability[static_cast<size_t>(c)] = static_cast<T>(std::exp(block.scale * scores[c] - largest) * reciprocal);
    std::memcpy(scores, probability.data(), probability.size() * sizeof(T));
  });
}

template <typename T>
void score_gradient(const TiledBlock& block, const TiledGradient& gradient) {
  for_each_row(block, [&](int64_t row, const TiledRow& place) {
    float* scores = block.scores + row * block.keys;
    float* dprobability = gradient.dprobability + row * block.keys;
    const T* out = static_cast<const T*>(gradient.out) + row * gradient.head_dim;
    const T* dout = static_cast<const T*>(gradient.dout) + row * gradient.head_dim;
    double product = 0;
    for (int64_t d = 0; d < gradient.head_dim; ++d) product += static_cast<double>(static_cast<float>(out[d])) * static_cast<float>(dout[d]);
    const float delta = static_cast<float>(product), lse = block.lse[place.lse];
    std::vector<T> probability(static_cast<size_t>(block.keys), T(0.0f)), dscores = probability;
    for (int64_t c = place.begin; c < place.end; ++c) {
      const float p = std::exp(block.scale * scores[c] - lse);
      probability[static_cast<size_t>(c)] = static_cast<T>(p);
      dscores[static_cast<size_t>(c)] = static_cast<T>(block.scale * p * (dprobability[c] - delta));
    }
    std::memcpy(scores, probability.data(), probability.size() * sizeof(T));
    std::memcpy(dprobability, dscores.data(), dscores.size() * sizeof(T));
  });
}

}  // namespace

void tiled_softmax_cpu(const TiledBlock& block) {
  with_type(block.element, [&](auto tag) { softmax<decltype(tag)>(block); });
}

void tiled_gradient_cpu(const TiledBlock& block, const TiledGradient& gradient) {
  with_type(block.element, [&](auto tag) { score_gradient<decltype(tag)>(block, gradient); });
}

}  // namespace oom::ops
