/// A plan in which every field of a plan file differs from its default.
#pragma once

#include "oom/plan.h"

namespace oom::testing {

inline Plan sample_plan() {
  Plan plan;
  plan.experts = "local";
  plan.activations = "offload";
  plan.device = DeviceKind::kCuda;
  plan.ranks = 2;
  plan.node_of_rank = {1, 0};
  plan.numa_nodes = 2;
  plan.workload = {.model = "qwen3_moe of 3 layers, 392832 parameters",
                   .sequence_length = 4096,
                   .global_batch = 8,
                   .compute = ElementType::kBfloat16,
                   .gradients = ElementType::kFloat32,
                   .isolated_documents = true,
                   .clips = true,
                   .router_aux_loss = 0.001};
  plan.transfer = {.windows = 3,
                   .gradient_slots = 4,
                   .ordinary_gradient_slots = 9,
                   .h2d_chunk_bytes = 1 << 20,
                   .d2h_chunk_bytes = 2 << 20,
                   .shard_delivery_ordinary = false,
                   .shard_delivery_bank = true,
                   .reduce_on_gpu = false};
  plan.deferred_layers = 3;
  plan.resident_layers = {0, 2};
  plan.resident_ordinary = OrdinaryResidency::kEmbedding;
  plan.cached_weights = false;
  plan.resident_cached_weights = true;
  plan.retained_feed_forward = {0, 1};
  plan.retained_attention = {1};
  plan.settings["local"] = {{"delivery", "\"full\""}};
  plan.settings["offload"] = {{"keep_boundaries", "\"3+1\""}, {"gdn_chunk", "4096"}, {"keep_attention", "[0, 2]"}, {"slack", "0.1"}, {"on", "true"}};
  return plan;
}

}  // namespace oom::testing
