/// A shard with random state, gradients and published weights, for tests of the optimizer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "optim/adamw.h"
#include "optim/bf16.h"

namespace oom::optim {

template <typename Element>
class AlignedArray {
 public:
  explicit AlignedArray(int64_t count, Element value = {})
      : count_(count), data_(static_cast<Element*>(std::aligned_alloc(64, (count * sizeof(Element) + 63) / 64 * 64))) {
    std::fill_n(data_.get(), count, value);
  }
  Element* data() const { return data_.get(); }
  int64_t size() const { return count_; }
  Element& operator[](int64_t index) const { return data_.get()[index]; }
  std::vector<Element> copy() const { return {data_.get(), data_.get() + count_}; }

 private:
  struct Free {
    void operator()(Element* data) const { std::free(data); }
  };
  int64_t count_;
  std::unique_ptr<Element[], Free> data_;
};

/// Same seed and sizes, same contents.
struct Shard {
  Shard(int64_t count, int partial_count, uint32_t seed)
      : memory(state_floats(count)), state(memory.data(), count), published_bf16(count, 0x7fc1), published_fp32(count, -77.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      *state.at(StatePart::kFirstMoment, i) = 1e-2f * normal(random);
      const float root = 1e-2f * normal(random);
      *state.at(StatePart::kSecondMoment, i) = root * root;
      *state.at(StatePart::kMaster, i) = 0.05f * normal(random);
    }
    for (int partial = 0; partial < partial_count; ++partial) {
      fp32.emplace_back(count);
      bf16.emplace_back(count);
      for (int64_t i = 0; i < count; ++i) {
        fp32.back()[i] = 1e-2f * normal(random);
        bf16.back()[i] = bf16_from_float(fp32.back()[i]);
      }
      fp32_partials.push_back(fp32.back().data());
      bf16_partials.push_back(bf16.back().data());
    }
  }

  Gradients gradients(ElementType type) const { return {type, type == ElementType::kBF16 ? bf16_partials : fp32_partials}; }
  Publish publish(ElementType type) const {
    return {type, type == ElementType::kBF16 ? static_cast<void*>(published_bf16.data()) : published_fp32.data()};
  }
  AdamWJob job(ElementType gradient = ElementType::kBF16, ElementType published = ElementType::kBF16) const {
    AdamWJob job;
    job.state = state;
    job.gradients = gradients(gradient);
    job.publish = publish(published);
    job.step.learning_rate = 1e-3;
    job.step.step = 3;
    return job;
  }

  AlignedArray<float> memory;
  StateBlocks state;
  std::vector<AlignedArray<float>> fp32;
  std::vector<AlignedArray<uint16_t>> bf16;
  std::vector<const void*> fp32_partials, bf16_partials;
  AlignedArray<uint16_t> published_bf16;
  AlignedArray<float> published_fp32;
};

}  // namespace oom::optim
