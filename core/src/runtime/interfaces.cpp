// The strategy interfaces' destructors live here so that their type information has one home, which plugins share.
#include "oom/activation_strategy.h"
#include "oom/expert_strategy.h"
#include "oom/selector.h"
#include "oom/step_emitter.h"

namespace oom {
inline namespace abi_1 {

StepEmitter::~StepEmitter() = default;
ExpertStrategy::~ExpertStrategy() = default;
ActivationStrategy::~ActivationStrategy() = default;
Selector::~Selector() = default;
ShortRuns::~ShortRuns() = default;

at::ScalarType StepEmitter::compute_type() const { return plan().workload.compute == ElementType::kFloat32 ? at::kFloat : at::kBFloat16; }
int64_t StepEmitter::boundary_bytes() const { return plan().tokens_per_rank() * model().hidden * element_bytes(plan().workload.compute); }

Activation StepEmitter::add_rows(const std::string& name, int64_t begin, int64_t rows, BufferClass buffer_class) {
  return {add_activation(name, rows * model().hidden * element_bytes(plan().workload.compute), buffer_class), begin, rows};
}
Activation StepEmitter::add_sums(const std::string& name, int64_t begin, int64_t rows) { return {add_activation(name, rows * model().hidden * 4), begin, rows}; }

int64_t StepEmitter::keep_bytes(int layer, int64_t sequences) const {
  const KeepShape shape = mixer(layer).keep_shape();
  return sequences * plan().workload.sequence_length * shape.heads * (shape.head_dim * element_bytes(plan().workload.compute) + 4);
}

}  // namespace abi_1
}  // namespace oom
