#include "oom/model.h"

namespace oom {
inline namespace abi_1 {

const char* role_name(ParameterRole role) {
  switch (role) {
    case ParameterRole::kEmbedding: return "embedding";
    case ParameterRole::kHead: return "head";
    case ParameterRole::kNorm: return "norms";
    case ParameterRole::kAttention: return "attention";
    case ParameterRole::kRecurrence: return "gated_deltanet";
    case ParameterRole::kRouter: return "router";
    case ParameterRole::kExpert: return "experts";
    case ParameterRole::kSharedExpert: return "shared_expert";
    case ParameterRole::kSharedGate: return "shared_gate";
    case ParameterRole::kDenseMlp: return "dense_mlp";
    case ParameterRole::kBuffer: return "buffers";
  }
  return "unknown";
}

int64_t ParameterSpec::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t ModelDescription::total_parameters() const {
  int64_t total = 0;
  for (const ParameterSpec& parameter : parameters) total += parameter.elements();
  return total;
}

int64_t ModelDescription::active_parameters() const {
  int64_t active = 0;
  for (const ParameterSpec& parameter : parameters) {
    active += parameter.role == ParameterRole::kExpert ? parameter.elements() / routed.experts * routed.top_k : parameter.elements();
  }
  return active;
}

}  // namespace abi_1
}  // namespace oom
