/// What operators' temporaries may take of a GPU's budget, told to its pool before the first step.
#pragma once

#include <cstdint>

namespace oom::runtime {

/// All in bytes of one GPU.
struct TemporariesBudget {
  int64_t budget = 0;    ///< [budget] gpu
  int64_t headroom = 0;  ///< of it, to stay free
  int64_t arena = 0;
  int64_t fixed = 0;     ///< context and libraries, as measured
  int64_t planned = 0;   ///< what the plan's stages need at most; 0: not known
};

/// Budget less headroom, arena and context. Where the context takes more than was planned for, what the stages need comes out of the headroom. Throws
/// BudgetError (exit 3) where that is not enough either, or nothing is left: better now than in the middle of a step.
int64_t temporaries_cap(const TemporariesBudget& gpu, int rank);

}  // namespace oom::runtime
