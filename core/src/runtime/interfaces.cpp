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

}  // namespace abi_1
}  // namespace oom
