#include "runtime/program_set.h"

#include "plugin/plugin_guard.h"
#include "program/verifier.h"

namespace oom::runtime {
namespace {

template <typename Emit>
EmittedProgram emit(const ProgramSources& sources, ProgramEmitter::Purpose purpose, const char* name, const EmitOptions& options, const Emit& emit_stages) {
  EmittedProgram program;
  program.memory = std::make_unique<StepMemory>(sources.plan.device == DeviceKind::kCuda);
  program.emitter = std::make_unique<ProgramEmitter>(ProgramEmitter::Context{.model = sources.model,
                                                                             .operators = sources.operators,
                                                                             .plan = sources.plan,
                                                                             .experts = sources.experts,
                                                                             .activations = &sources.activations,
                                                                             .transfer = sources.transfer,
                                                                             .pools = sources.pools,
                                                                             .memory = *program.memory,
                                                                             .run = sources.run,
                                                                             .purpose = purpose,
                                                                             .use = options.use});
  emit_stages(*program.emitter);
  program.built = program.emitter->finish();
  program.memory->resize(program.built.program.buffers.size());
  if (!options.verified) return program;
  const std::vector<program::Fault> faults = program::verify(program.built.program);
  if (!faults.empty()) {
    std::string text;
    for (const program::Fault& fault : faults) text += cat("\n  ", fault.message);
    throw Error(cat("the ", name, " program of ", sources.plan.experts, " and ", sources.plan.activations, " does not hold:", text));
  }
  return program;
}

}  // namespace

EmittedProgram emit_training(const ProgramSources& sources, const EmitOptions& options) {
  return emit(sources, ProgramEmitter::Purpose::kTraining, "training", options, [&](ProgramEmitter& emitter) {
    plugin::guarded(sources.plan.activations, "emit_training", plugin::kNoStep, [&] { sources.activations.emit_training(emitter); });
  });
}
EmittedProgram emit_evaluation(const ProgramSources& sources) {
  return emit(sources, ProgramEmitter::Purpose::kEvaluation, "evaluation", {}, [&](ProgramEmitter& emitter) {
    plugin::guarded(sources.plan.activations, "emit_evaluation", plugin::kNoStep, [&] { sources.activations.emit_evaluation(emitter); });
  });
}
EmittedProgram emit_drain(const ProgramSources& sources) {
  return emit(sources, ProgramEmitter::Purpose::kDrain, "drain", {}, [&](ProgramEmitter& emitter) { emitter.emit_drain(); });
}

}  // namespace oom::runtime
