/// A plan: every choice that execution depends on, resolved. `oom plan` writes it as TOML, people edit it, `oom train` executes it.
/// Strategies read the shared choices here and keep their own under `settings` (one table each, validated by their schema).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oom/error.h"
#include "oom/host_services.h"

namespace oom {
inline namespace abi_1 {

enum class ElementType { kBfloat16, kFloat32 };
/// Which ordinary parameters (attention, norms, routers, shared experts, embedding, head) have their state on the GPUs, evenly by rank. The embedding's gradient is
/// the last of a step and its weights are the first of the next: on the host, nothing hides its update.
enum class OrdinaryResidency { kNone, kEmbedding, kAll };
constexpr int64_t element_bytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

/// What a plan was made for; a plan is refused for another workload unless the user insists.
struct Workload {
  std::string model;             ///< family and geometry, in one line
  int64_t sequence_length = 0;   ///< S, tokens
  int64_t global_batch = 0;      ///< sequences a step over all ranks
  ElementType compute = ElementType::kBfloat16;
  ElementType gradients = ElementType::kBfloat16;  ///< in which gradients leave the GPU
  bool isolated_documents = false;
  bool clips = false;
  double router_aux_loss = 0;
};

struct TransferPlan {
  int windows = 2;               ///< managed GPU buffers for a layer's bank, and as many for its ordinary parameters
  int gradient_slots = 2;        ///< host slots of banks' gradients on their way to the update
  int ordinary_gradient_slots = 2;  ///< the same of a layer's ordinary parameters, which wait behind the updates of banks
  int64_t h2d_chunk_bytes = 64 << 20;
  int64_t d2h_chunk_bytes = 64 << 20;
  bool shard_delivery_ordinary = true;  ///< each rank brings 1/P from the host and hands it on; false: each brings all of it
  bool shard_delivery_bank = true;      ///< the same of banks: the expert strategy's choice, which plan files keep among its settings
  bool reduce_on_gpu = true;            ///< false: partials of the ranks are summed by the host's update
};

struct Plan {
  int version = 1;
  std::string experts;           ///< ExpertStrategy's name
  std::string activations;       ///< ActivationStrategy's name
  DeviceKind device = DeviceKind::kCpu;
  int ranks = 1;
  std::vector<int> node_of_rank;
  int numa_nodes = 1;
  Workload workload;
  TransferPlan transfer;
  /// Updates of so many decoder layers with state on the host (runtime/deferral.h), and of the embedding, wait for the next forward, layer by layer;
  /// the others, and resident shards, run as soon as their gradients are there. 0: all at once (overlapped); number of layers: all wait (deferred).
  int deferred_layers = 0;
  std::vector<int> resident_layers;  ///< layers whose expert shards live on their owners' GPUs
  OrdinaryResidency resident_ordinary = OrdinaryResidency::kNone;
  bool cached_weights = true;        ///< working weights of streamed shards kept on the host; false: made from masters at each delivery
  bool resident_cached_weights = false;  ///< working weights of resident shards kept beside their state (14 B a parameter in BF16); false: made when used (12 B)
  std::vector<int> retained_feed_forward;  ///< layers whose feed-forward's backward tensors stay on the GPU from the forward on: no replay
  std::vector<int> retained_attention;     ///< the attention half's, likewise
  /// Tables of the plan's plugins: plugin -> key -> value as TOML text.
  std::map<std::string, std::map<std::string, std::string>> settings;
  /// One of them; empty where the plan has none.
  std::map<std::string, std::string> settings_of(const std::string& plugin) const {
    const auto table = settings.find(plugin);
    return table == settings.end() ? std::map<std::string, std::string>() : table->second;
  }

  int64_t sequences_per_rank() const { return workload.global_batch / ranks; }
  int64_t tokens_per_rank() const { return sequences_per_rank() * workload.sequence_length; }
};

}  // namespace abi_1
}  // namespace oom
