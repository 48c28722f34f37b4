/// What the parts of the parameter stream share while they emit stages, and later inside their actions.
#pragma once

#include <string>
#include <vector>

#include "comm/device_transfer.h"
#include "oom/program.h"
#include "oom/step_memory.h"
#include "optim/adamw.h"
#include "runtime/run_state.h"
#include "runtime/storage.h"

namespace oom::memory {
class WorkerPool;
}

namespace oom::runtime {

/// Pinned host threads by NUMA node. Empty while only planning.
struct HostPools {
  std::vector<memory::WorkerPool*> update;   ///< AdamW and sums of squares
  std::vector<memory::WorkerPool*> prepare;  ///< masters into working weights; may be empty where none are made at delivery
};

struct StreamContext {
  ProgramBuilder& program;
  StepMemory& memory;
  StoragePlan& storage;
  const ModelDescription& model;
  const Plan& plan;
  RunState& run;
  comm::DeviceTransfer& transfer;
  const HostPools& pools;

  int node_of(int rank) const { return plan.node_of_rank.at(rank); }
  int64_t weight_bytes() const { return element_bytes(plan.workload.compute); }
  /// Of gradients between their reduction and the update.
  int64_t gradient_bytes() const { return element_bytes(plan.workload.gradients); }
  /// A persistent buffer with memory of its own.
  BufferId add(const std::string& name, Place place, int64_t bytes, BufferClass buffer_class) const;
};

inline optim::ElementType as_optim(ElementType type) { return type == ElementType::kFloat32 ? optim::ElementType::kFP32 : optim::ElementType::kBF16; }

}  // namespace oom::runtime
