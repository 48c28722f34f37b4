#include "optim/adamw.h"

#include <emmintrin.h>

#include <algorithm>
#include <vector>

#include "memory/denormals.h"
#include "memory/worker_pool.h"
#include "oom/error.h"
#include "optim/adamw_kernels.h"

namespace oom::optim {
namespace {

const KernelSet& kernels_for(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx2: return kAvx2Kernels;
    case CpuIsa::kAvx512: return kAvx512Kernels;
    case CpuIsa::kAvx512Bf16: return kAvx512Bf16Kernels;
    case CpuIsa::kPortable: break;
  }
  return kPortableKernels;
}

void check_range(int64_t begin, int64_t end, int64_t count) {
  OOM_CHECK(begin >= 0 && begin <= end && end <= count, "elements ", begin, " to ", end, " of a shard of ", count);
}

void check_gradients(const Gradients& gradients) {
  OOM_CHECK(!gradients.partials.empty(), "no gradient given");
  for (const void* partial : gradients.partials) OOM_CHECK(partial != nullptr, "a partial gradient has no address");
}

double in_lane_order(const double (&lanes)[kLanes]) {
  double sum = 0.0;
  for (double lane : lanes) sum += lane;
  return sum;
}

/// Calls visit(block, begin, end) for the elements of [begin, end) that lie in each block; begin and end count within the block.
template <typename Visit>
void for_each_block(int64_t begin, int64_t end, Visit visit) {
  while (begin < end) {
    const int64_t block = begin / kBlockParameters;
    const int64_t stop = std::min(end, (block + 1) * kBlockParameters);
    visit(block, static_cast<int>(begin - block * kBlockParameters), static_cast<int>(stop - block * kBlockParameters));
    begin = stop;
  }
}

int64_t first_item(int64_t begin) { return begin / kWorkItemParameters; }
int64_t item_count(int64_t begin, int64_t end) {
  return begin == end ? 0 : (end + kWorkItemParameters - 1) / kWorkItemParameters - first_item(begin);
}
ElementRange item_range(int64_t item, int64_t begin, int64_t end) {
  return {std::max(begin, item * kWorkItemParameters), std::min(end, (item + 1) * kWorkItemParameters)};
}

/// One job's constants and kernels; const afterwards, so every thread reads the same one.
class Updater {
 public:
  Updater(const AdamWJob& job, CpuIsa isa) : job_(job), kernels_(kernels_for(isa)), constants_(adamw_constants(job.step)), no_decay_(constants_) {
    check_gradients(job.gradients);
    no_decay_.decay = -0.0f;
  }

  /// Returns the sum of squares of elements [begin, end), all of one work item.
  double update(int64_t begin, int64_t end) const {
    double sum = 0.0;
    for_each_block(begin, end, [&](int64_t block, int from, int to) { sum += update_block(block, from, to); });
    return sum;
  }

 private:
  double update_block(int64_t block, int from, int to) const {
    const int64_t base = block * kBlockParameters;
    Run run{job_.state.at(StatePart::kFirstMoment, base), job_.state.at(StatePart::kSecondMoment, base), job_.state.at(StatePart::kMaster, base),
            base, from, to, job_.gradients.partials.data(), static_cast<int>(job_.gradients.partials.size()), job_.gradient_scale, job_.publish.data};
    const UpdateKernel kernel = kernels_.update[static_cast<int>(job_.gradients.type)];
    double lanes[kLanes] = {};
    const auto advance = [&](int64_t stop, const AdamWConstants& constants) {
      run.end = static_cast<int>(std::clamp<int64_t>(stop - base, run.begin, to));
      if (run.begin < run.end) kernel(run, constants, lanes);
      run.begin = run.end;
    };
    auto range = std::partition_point(job_.without_decay.begin(), job_.without_decay.end(),
                                      [&](const ElementRange& r) { return r.end <= base + from; });
    for (; range != job_.without_decay.end() && range->begin < base + to; ++range) {
      advance(range->begin, constants_);
      advance(range->end, no_decay_);
    }
    advance(base + to, constants_);
    if (job_.publish.data != nullptr) {
      run.begin = from;
      run.end = to;
      kernels_.publish[static_cast<int>(job_.publish.type)](run);
    }
    return in_lane_order(lanes);
  }

  const AdamWJob& job_;
  const KernelSet& kernels_;
  AdamWConstants constants_, no_decay_;
};

void publish_range(const KernelSet& kernels, const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish) {
  const memory::ScopedDenormalsAsZero denormals;
  for_each_block(begin, end, [&](int64_t block, int from, int to) {
    const int64_t base = block * kBlockParameters;
    kernels.publish[static_cast<int>(publish.type)](
        Run{nullptr, nullptr, state.at(StatePart::kMaster, base), base, from, to, nullptr, 0, 1.0f, publish.data});
  });
  _mm_sfence();  // stores past the caches are ordered before whatever announces the weights
}

}  // namespace

AdamWConstants adamw_constants(const AdamWStep& step) {
  OOM_CHECK(step.step >= 1, "AdamW counts steps from 1; got ", step.step);
  OOM_CHECK(step.beta1 >= 0 && step.beta1 < 1 && step.beta2 >= 0 && step.beta2 < 1, "betas ", step.beta1, " and ", step.beta2);
  const double correction1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  return {static_cast<float>(-step.learning_rate * step.weight_decay), static_cast<float>(1.0 - step.beta1), static_cast<float>(step.beta2),
          static_cast<float>(1.0 - step.beta2), static_cast<float>(1.0 / std::sqrt(correction2)), static_cast<float>(step.eps),
          static_cast<float>(-step.learning_rate / correction1)};
}

GradientStats adamw_update(const AdamWJob& job, int64_t begin, int64_t end, CpuIsa isa) {
  check_range(begin, end, job.state.count());
  const Updater updater(job, isa);
  const memory::ScopedDenormalsAsZero denormals;
  double sum = 0.0;
  for (int64_t item = first_item(begin), stop = item + item_count(begin, end); item < stop; ++item) {
    const auto [from, to] = item_range(item, begin, end);
    sum += updater.update(from, to);
  }
  _mm_sfence();
  return {sum};
}

GradientStats adamw_update_parallel(memory::WorkerPool& pool, const AdamWJob& job, int64_t begin, int64_t end, CpuIsa isa) {
  check_range(begin, end, job.state.count());
  const Updater updater(job, isa);
  std::vector<double> sums(item_count(begin, end));
  pool.parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t first, int64_t last, int) {
    const memory::ScopedDenormalsAsZero denormals;
    for (int64_t k = first; k < last; ++k) {
      const auto [from, to] = item_range(first_item(begin) + k, begin, end);
      sums[k] = updater.update(from, to);
    }
    _mm_sfence();
  });
  double sum = 0.0;
  for (double item : sums) sum += item;
  return {sum};
}

namespace {

/// The sum of squares of elements [begin, end), all of one work item.
double item_squares(StatsKernel kernel, const Gradients& gradients, float gradient_scale, int64_t begin, int64_t end) {
  double sum = 0.0;
  for_each_block(begin, end, [&](int64_t block, int from, int to) {
    double lanes[kLanes] = {};
    kernel(Run{nullptr, nullptr, nullptr, block * kBlockParameters, from, to, gradients.partials.data(), static_cast<int>(gradients.partials.size()), gradient_scale, nullptr}, lanes);
    sum += in_lane_order(lanes);
  });
  return sum;
}

}  // namespace

GradientStats gradient_stats(const Gradients& gradients, float gradient_scale, int64_t begin, int64_t end, CpuIsa isa) {
  OOM_CHECK(begin >= 0 && begin <= end, "elements ", begin, " to ", end);
  check_gradients(gradients);
  const StatsKernel kernel = kernels_for(isa).stats[static_cast<int>(gradients.type)];
  const memory::ScopedDenormalsAsZero denormals;
  double sum = 0.0;
  for (int64_t item = first_item(begin), stop = item + item_count(begin, end); item < stop; ++item) {
    const auto [from, to] = item_range(item, begin, end);
    sum += item_squares(kernel, gradients, gradient_scale, from, to);
  }
  return {sum};
}

GradientStats gradient_stats_parallel(memory::WorkerPool& pool, const Gradients& gradients, float gradient_scale, int64_t begin, int64_t end, CpuIsa isa) {
  OOM_CHECK(begin >= 0 && begin <= end, "elements ", begin, " to ", end);
  check_gradients(gradients);
  const StatsKernel kernel = kernels_for(isa).stats[static_cast<int>(gradients.type)];
  std::vector<double> sums(item_count(begin, end));
  pool.parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t first, int64_t last, int) {
    const memory::ScopedDenormalsAsZero denormals;
    for (int64_t k = first; k < last; ++k) {
      const auto [from, to] = item_range(first_item(begin) + k, begin, end);
      sums[k] = item_squares(kernel, gradients, gradient_scale, from, to);
    }
  });
  double sum = 0.0;
  for (double item : sums) sum += item;
  return {sum};
}

void publish_weights(const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish, CpuIsa isa) {
  check_range(begin, end, state.count());
  OOM_CHECK(publish.data != nullptr, "nowhere to publish to");
  publish_range(kernels_for(isa), state, begin, end, publish);
}

void publish_weights_parallel(memory::WorkerPool& pool, const StateBlocks& state, int64_t begin, int64_t end, const Publish& publish, CpuIsa isa) {
  check_range(begin, end, state.count());
  OOM_CHECK(publish.data != nullptr, "nowhere to publish to");
  pool.parallel_for(item_count(begin, end), [&](int64_t first, int64_t last, int) {
    if (first < last)
      publish_range(kernels_for(isa), state, item_range(first_item(begin) + first, begin, end).begin,
                    item_range(first_item(begin) + last - 1, begin, end).end, publish);
  });
}

}  // namespace oom::optim
