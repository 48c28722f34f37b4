#include "program_memory.h"

namespace oom::program {
namespace {

uint64_t mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull + (a >> 29); }

}  // namespace

Memory memory_of(const Program& program) {
  Memory memory;
  for (const Buffer& buffer : program.buffers) memory.emplace_back(static_cast<size_t>(buffer.bytes) / 8, 1);
  return memory;
}

void mix_stage(const Program& program, Memory& memory, StageId id, int64_t step) {
  const Stage& stage = program.stages[id];
  uint64_t value = mix(static_cast<uint64_t>(id), static_cast<uint64_t>(step));
  for (const Access& access : stage.accesses) {
    if (access.mode == AccessMode::kWrite) continue;
    for (uint64_t word : memory[program.buffers[access.buffer].storage]) value = mix(value, word);
  }
  for (const Access& access : stage.accesses) {
    if (access.mode == AccessMode::kRead) continue;
    for (uint64_t& word : memory[program.buffers[access.buffer].storage]) word = value = mix(value, 7);
  }
}

Memory sequential_result(const Program& program, int steps) {
  Memory memory = memory_of(program);
  for (int step = 0; step < steps; ++step) {
    for (size_t id = 0; id < program.stages.size(); ++id) mix_stage(program, memory, static_cast<StageId>(id), step);
  }
  return memory;
}

}  // namespace oom::program
