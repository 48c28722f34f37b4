/// The training state of a run by parameter: where in which shard each element's master and moments lie. Shards know nothing of tensors and
/// checkpoints nothing of shards; this is where they meet. A shard's state is on the host or, resident, on its owner's device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/worker_pool.h"
#include "oom/model.h"
#include "oom/parameter_unit.h"
#include "optim/state_blocks.h"
#include "runtime/device_state.h"

namespace oom::runtime {

class StateStore {
 public:
  /// Memory of one shard of one unit.
  struct Shard {
    optim::StateBlocks state;
    void* weights = nullptr;  ///< where published working weights are kept, beside the state; null: they are made when they are used
    int node = 0;
    int rank = -1;            ///< whose device memory state and weights are in; -1: the host's
  };

  /// `device` reaches resident shards.
  StateStore(const ModelDescription& model, ElementType working_type, std::unique_ptr<DeviceState> device)
      : model_(model), working_type_(working_type), device_(std::move(device)) {}
  /// Units in the order of their ids; `shards[i]` belongs to unit.shards[i].
  void add(const ParameterUnit& unit, std::vector<Shard> shards);

  /// Copies elements [first, first + out.size()) of a parameter's stream.
  void read(int parameter, optim::StatePart part, int64_t first, std::span<float> out) const;
  void write(int parameter, optim::StatePart part, int64_t first, std::span<const float> in);
  /// Sets every moment, and the masters of padding, to zero.
  void clear(std::span<memory::WorkerPool* const> pools);
  /// Makes the working weights that are kept from masters.
  void publish(std::span<memory::WorkerPool* const> pools);

 private:
  // A run of a parameter's elements inside one shard.
  struct Segment {
    int64_t first = 0, count = 0;  // of the parameter
    int unit = 0, shard = 0;
    int64_t offset = 0;            // in the shard
  };
  template <typename Visit>
  void visit(int parameter, int64_t first, int64_t count, const Visit& visit) const;

  const ModelDescription& model_;
  ElementType working_type_;
  std::unique_ptr<DeviceState> device_;
  std::vector<std::vector<Shard>> shards_;         // by unit
  std::vector<std::vector<Segment>> segments_;     // by parameter, ascending
};

}  // namespace oom::runtime
