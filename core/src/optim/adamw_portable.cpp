#include "optim/adamw_kernels.h"

namespace oom::optim {
namespace {

template <ElementType kGradient>
void update(const Run& run, const AdamWConstants& constants, double* lanes) {
  for (int i = run.begin; i < run.end; ++i) update_element<kGradient>(run, constants, i, lanes);
}

template <ElementType kGradient>
void stats(const Run& run, double* lanes) {
  for (int i = run.begin; i < run.end; ++i) stats_element<kGradient>(run, i, lanes);
}

template <ElementType kPublish>
void publish(const Run& run) {
  for (int i = run.begin; i < run.end; ++i) publish_element<kPublish>(run, i);
}

}  // namespace

const KernelSet kPortableKernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                                 {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                                 {publish<ElementType::kBF16>, publish<ElementType::kFP32>}};

}  // namespace oom::optim
