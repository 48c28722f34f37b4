// The interfaces' destructors live here so that their type information has one home, which plugins share.
#include "oom/model_adapter.h"
#include "oom/sublayer.h"

namespace oom {
inline namespace abi_1 {

Mixer::~Mixer() = default;
FeedForward::~FeedForward() = default;
ModelAdapter::~ModelAdapter() = default;

}  // namespace abi_1
}  // namespace oom
