/// Random valid programs: ranks, nodes, lanes, buffers that share bytes, transients (of GPUs also between lanes), collectives, issue stages, explicit orders.
#pragma once

#include "oom/program.h"

namespace oom::program {

struct RandomProgramSize {
  int ranks = 2;
  int nodes = 1;
  int buffers = 8;
  int stages = 40;
};

/// Equal seeds and sizes give equal programs. Actions are null; costs are small and vary.
BuiltProgram random_program(unsigned seed, RandomProgramSize size = {});

}  // namespace oom::program
