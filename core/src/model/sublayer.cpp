// The interfaces' destructors live here so that their type information has one home, which plugins share.
#include "oom/model_adapter.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

Mixer::~Mixer() = default;
AttentionParts::~AttentionParts() = default;
FeedForward::~FeedForward() = default;
ModelAdapter::~ModelAdapter() = default;

at::Tensor AttentionParts::project_backward(const at::Tensor& dy, const at::Tensor&, const at::Tensor&, const MixerCall&) const { return dy; }

}  // namespace abi_1
}  // namespace oom
