/// Plain memory behind the storages of a program, and arithmetic that mixes what a stage reads into what it writes: an execution is
/// right when it leaves what the sequential one leaves, and what is not ordered is a data race for the thread sanitizer to see.
#pragma once

#include <cstdint>
#include <vector>

#include "oom/program.h"

namespace oom::program {

using Memory = std::vector<std::vector<uint64_t>>;  // [storage]

Memory memory_of(const Program& program);
void mix_stage(const Program& program, Memory& memory, StageId stage, int64_t step);
/// Returns the memory after `steps` sequential steps, numbered from 0.
Memory sequential_result(const Program& program, int steps);

}  // namespace oom::program
