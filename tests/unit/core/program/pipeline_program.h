/// The EP pipeline of a small model: weights stream through two windows, tokens are exchanged, boundaries go to the host and come
/// back, gradients leave through two device buffers and two host slots, shards are updated on the host.
#pragma once

#include "oom/program.h"

namespace oom::program {

struct PipelineSize {
  int ranks = 2;
  int layers = 6;
  int windows = 2;
  int slots = 2;
  double weight_bytes = 1e9;   // BF16 of a layer's shard on one rank
  double layer_flops = 1e13;   // forward of one layer on one rank
  int64_t boundary_bytes = 100'000'000;
};

/// Actions are null.
BuiltProgram pipeline_program(PipelineSize size = {});

}  // namespace oom::program
