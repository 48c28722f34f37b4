/// The programs of a plan, emitted by its strategies: a training step, a step's forward alone, and the drain of pending updates. They name their
/// storage alike, so one set of memory serves all three. Emission touches no device: `oom plan` and the engine build the same thing.
#pragma once

#include <memory>

#include "oom/activation_strategy.h"
#include "runtime/program_emitter.h"

namespace oom::runtime {

struct EmittedProgram {
  std::unique_ptr<StepMemory> memory;
  std::unique_ptr<ProgramEmitter> emitter;  // actions refer to it
  BuiltProgram built;
};

struct ProgramSet {
  EmittedProgram training, evaluation, drain;
};

struct ProgramSources {
  const ModelDescription& model;
  const ModelOperators& operators;
  const Plan& plan;
  ExpertStrategy& experts;
  ActivationStrategy& activations;
  comm::DeviceTransfer& transfer;
  const HostPools& pools;
  RunState& run;
};

struct EmitOptions {
  bool verified = true;
  ProgramUse use = ProgramUse::kRun;
};

/// Emits and, unless told otherwise, verifies. Throws Error with every fault when a strategy emitted a program that does not hold.
EmittedProgram emit_training(const ProgramSources& sources, const EmitOptions& options = {});
EmittedProgram emit_evaluation(const ProgramSources& sources);
EmittedProgram emit_drain(const ProgramSources& sources);

}  // namespace oom::runtime
