/// What one program says of its layers.
#pragma once

#include <oom/model.h>
#include <oom/planning_context.h>

#include <vector>

#include "../policy.h"

namespace oom::offload {

/// Seconds, and bytes of the rank with the least GPU memory left.
struct ProgramReading {
  struct Pass {
    bool seen = false;
    double seconds = 0;
    int64_t bytes = 0;  ///< most that lives at once, without persistent memory, layer inputs and kept results
  };
  struct Layer {
    Pass forward, backward, traverse;
    double weights_seconds = 0;    ///< of the busiest lane that brings its parameters before the forward, updates left for it included
    double gradients_seconds = 0;  ///< of the busiest lane that takes its gradients away, updates included
    int64_t result_bytes = 0;   ///< of attention, where the program keeps them
    int64_t carried_bytes = 0;  ///< when its backward begins: what lives from forward to backward, inputs and results left out
    bool groups_heads = false;  ///< its attention goes by groups of heads
  };
  int rank = 0;
  std::vector<Layer> layers;
  Pass head;  ///< everything outside layers
};

ProgramReading read_program(const AccountedProgram& step, const PlanningContext& context, int layers);

/// Seconds of a copy between a GPU and the host while the other ranks beside the node do the same. `kind`: of stages.
double copy_seconds(const CostTable& costs, const char* kind, double bytes, bool to_host, int ranks_on_node);

}  // namespace oom::offload
