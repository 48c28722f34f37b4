#include "runtime/plan_candidate.h"

#include "comm/device_transfer.h"
#include "memory/temporaries_pool.h"
#include "plugin/plugin_guard.h"
#include "runtime/fixed_memory.h"
#include "runtime/plan_judge.h"
#include "runtime/program_set.h"
#include "runtime/schedule.h"
#include "runtime/storage_bank.h"

namespace oom::runtime {
namespace {

// What the program's buffers do not say: alignment in the arenas, the process itself, and that the CPU device's memory is the host's.
void add_surroundings(MemoryAccount& account, const Plan& plan, const StoragePlan& storage) {
  StorageBank bank;
  bank.add(storage);
  for (auto* places : {&account.gpus, &account.nodes}) {
    for (PlaceAccount& place : *places) add_fixed(place, "alignment of regions to pages", BufferClass::kFixed, bank.total_bytes(place.place) - place.persistent_bytes);
  }
  const bool cuda = plan.device == DeviceKind::kCuda;
  for (PlaceAccount& gpu : account.gpus) {
    if (!cuda) continue;
    const int64_t temporaries = gpu.peak_bytes - gpu.persistent_bytes;
    add_fixed(gpu, "gaps between temporaries", BufferClass::kWorkspace, memory::pool_bytes(temporaries) - temporaries);
    add_fixed(gpu, "CUDA context and libraries", BufferClass::kFixed, gpu_fixed_bytes(plan.ranks));
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    PlaceAccount& node = account.nodes.at(plan.node_of_rank.at(rank));
    if (cuda) {
      add_fixed(node, cat("driver's memory for gpu ", rank), BufferClass::kFixed, kHostFixedBytesPerGpu);
      continue;
    }
    const ClassBytes& device = account.gpus.at(rank).at_peak;
    for (size_t c = 0; c < device.size(); ++c) {
      const auto buffer_class = static_cast<BufferClass>(c);
      add_fixed(node, cat("device memory of rank ", rank, ", ", buffer_class_name(buffer_class)), buffer_class, device[c]);
    }
  }
  const int64_t process = kHostFixedBytes + (cuda ? kHostFixedBytesOfCuda : 0);
  for (PlaceAccount& node : account.nodes) add_fixed(node, "process and libraries", BufferClass::kFixed, process / plan.numa_nodes);
}

}  // namespace

int64_t PlanCandidate::over_bytes() const {
  int64_t bytes = 0;
  for (const Shortfall& shortfall : shortfalls) bytes += shortfall.over_bytes();
  return bytes;
}

void configure_strategies(Session& session, Plan& plan) {
  try {
    ExpertStrategy& experts = session.experts(plan.experts);
    plugin::guarded(plan.experts, "configure", plugin::kNoStep, [&] { experts.configure(session.model().description, plan); });
    ActivationStrategy& activations = session.activations(plan.activations);
    plugin::guarded(plan.activations, "configure", plugin::kNoStep, [&] { activations.configure(session.model().description, plan); });
  } catch (const ConfigError& error) {
    // A strategy knows where the values of its own table stand, but not where the number of ranks does.
    constexpr std::string_view kRanks = "engine.ranks";
    const std::string_view message = error.what();
    if (!message.starts_with(kRanks)) throw;
    throw ConfigError(cat(session.config().where("engine", "ranks"), message.substr(kRanks.size())));
  }
}

AccountedProgram emit_plan(Session& session, const Plan& plan, ProgramUse use) {
  const auto transfer = comm::DeviceTransfer::for_planning();
  const HostPools pools;
  RunState state;
  state.counts_experts = expert_load_steps(session.config());
  EmittedProgram emitted = emit_training({session.model().description, session.model().operators, plan, session.experts(plan.experts), session.activations(plan.activations), *transfer, pools, state},
                                         {.verified = use == ProgramUse::kJudge, .use = use});
  AccountedProgram result{.program = std::move(emitted.built.program), .account = {}};
  result.account = account_memory(result.program);
  add_surroundings(result.account, plan, emitted.emitter->storage());
  return result;
}

PlanningContext planning_context(Session& session, const std::string& experts, const Budgets& budgets) {
  PlanningContext context{.costs = session.costs(experts), .gpu_budget_bytes = budgets.gpu_bytes, .host_budget_bytes = budgets.host_bytes,
                          .emit = [&session](const Plan& plan) { return session.judge().emit(plan); }};
  for (int64_t& bytes : context.gpu_budget_bytes) bytes -= budgets.headroom_bytes;
  return context;
}

Simulation simulate_plan(const Plan& plan, const Program& program, const CostTable& costs) { return simulate(program, costs, {.issuing_threads = plan.device == DeviceKind::kCuda}); }

PlanCandidate judge_plan(Session& session, Plan plan, const Budgets& budgets) {
  PlanCandidate candidate;
  candidate.plan = std::move(plan);
  AccountedProgram emitted = emit_plan(session, candidate.plan, ProgramUse::kJudge);
  candidate.program = std::move(emitted.program);
  candidate.account = std::move(emitted.account);
  candidate.simulation = simulate_plan(candidate.plan, candidate.program, session.costs(candidate.plan.experts));
  candidate.shortfalls = find_shortfalls(candidate.account, budgets);
  return candidate;
}

}  // namespace oom::runtime
