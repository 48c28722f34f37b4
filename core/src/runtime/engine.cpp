#include "runtime/engine.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "checkpoint/tensor_files.h"
#include "hardware/host_limits.h"
#include "hardware/topology.h"
#include "runtime/fixed_memory.h"
#include "runtime/temporaries_cap.h"

namespace oom::runtime {
namespace {

// With cached weights nothing is prepared, so updates may have the preparing cores too.
std::vector<int> update_cpus(const hardware::CorePlan::Node& node, bool cached_weights) {
  std::vector<int> cpus = node.update;
  if (cached_weights && !node.shared) cpus.insert(cpus.end(), node.prepare.begin(), node.prepare.end());
  return cpus;
}

// Stages that poll their abort flag end at once and copies in milliseconds, so what is still there after as long as the watchdog allows is stuck.
std::chrono::milliseconds grace_after_failure(double watchdog_seconds) {
  constexpr double kLongestSeconds = 60;
  return std::chrono::milliseconds(static_cast<int64_t>(1e3 * (watchdog_seconds > 0 ? std::min(watchdog_seconds, kLongestSeconds) : kLongestSeconds)));
}

}  // namespace

Engine::Engine(const ProgramSources& sources, const EngineOptions& options)
    : deadline_(grace_after_failure(options.watchdog_seconds)), sources_(sources), options_(options), topology_(options.topology ? *options.topology : hardware::Topology::detect()) {
  const Plan& plan = sources.plan;
  const hardware::HostLimits limits = hardware::read_host_limits();
  OOM_CHECK_LE(static_cast<size_t>(plan.numa_nodes), topology_.nodes.size(), "the plan names more NUMA nodes than this machine has");
  cores_ = hardware::plan_cores(topology_, {.node_of_rank = plan.node_of_rank, .cpu_quota = limits.cpu_quota});
  for (int node = 0; node < plan.numa_nodes; ++node) {
    const auto make_pool = [&](const char* work, const std::vector<int>& cpus) { return pools_.emplace_back(std::make_unique<memory::WorkerPool>(cat(work, " ", node), cpus)).get(); };
    host_pools_.update.push_back(make_pool("update", update_cpus(cores_.nodes.at(node), plan.cached_weights)));
    if (!plan.cached_weights) host_pools_.prepare.push_back(make_pool("prepare", cores_.nodes.at(node).prepare));
  }
  int cores = topology_.core_count();
  if (limits.cpu_quota) cores = std::min(cores, std::max(1, static_cast<int>(*limits.cpu_quota)));
  device_ = DeviceRuntime::make(plan.device, plan.ranks, std::max(1, cores / plan.ranks));

  ProgramSources own = sources_;
  training_.program = emit_training({own.model, own.operators, own.plan, own.experts, own.activations, own.transfer, host_pools_, own.run});
  evaluation_.program = emit_evaluation({own.model, own.operators, own.plan, own.experts, own.activations, own.transfer, host_pools_, own.run});
  drain_.program = emit_drain({own.model, own.operators, own.plan, own.experts, own.activations, own.transfer, host_pools_, own.run});
  read_fault();
  allocate({&training_.program, &evaluation_.program, &drain_.program});
  sources_.run.first_step = 1;
  if (plan.workload.isolated_documents) sources_.run.documents.resize(plan.ranks);
}

// Executors go first: their threads run actions that refer to everything else.
Engine::~Engine() {
  drain_.executor.reset();
  evaluation_.executor.reset();
  training_.executor.reset();
  for (std::byte* region : registered_) device_->registry()->unregister_range(region);
}

void Engine::allocate(const std::vector<EmittedProgram*>& programs) {
  const Plan& plan = sources_.plan;
  StorageBank bank;
  for (const EmittedProgram* program : programs) bank.add(program->emitter->storage());

  memory::HostArenaOptions host;
  for (int node = 0; node < plan.numa_nodes; ++node) {
    // A plan of one node may be larger than any node of this machine.
    host.nodes.push_back({.bytes = bank.total_bytes(Place::numa(node)), .os_index = plan.numa_nodes > 1 ? topology_.nodes[node].os_index : -1, .touch_cpus = cores_.nodes[node].update});
  }
  // Registered region by region below: state never leaves the host, and a copy must not cross from one registration into another.
  host.registry = nullptr;
  host.poison = options_.poison;
  host.progress = [last = -1](const memory::HostArenaProgress& progress) mutable {
    if (progress.total_bytes < (int64_t{8} << 30)) return;
    const int tenth = static_cast<int>(10 * progress.done_bytes / progress.total_bytes);
    if (tenth == last) return;
    last = tenth;
    log_info("memory: ", progress.phase == memory::HostArenaProgress::Phase::kTouch ? "touching" : "registering", " host memory, ", tenth * 10, " % of ",
             progress.total_bytes >> 30, " GiB");
  };
  host_ = std::make_unique<memory::HostArena>(host);

  std::vector<std::byte*> device(plan.ranks);
  std::vector<int64_t> used(plan.ranks, 0);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const int64_t bytes = bank.total_bytes(Place::gpu(rank));
    device[rank] = device_->allocate(rank, bytes);
    if (options_.poison) device_->fill(rank, device[rank], 0xff, bytes);
    if (rank < static_cast<int>(options_.gpu_budget_bytes.size())) {
      const int64_t planned = rank < static_cast<int>(options_.gpu_planned_bytes.size()) ? options_.gpu_planned_bytes[rank] - gpu_fixed_bytes(plan.ranks) - bytes : 0;
      const TemporariesBudget gpu{.budget = options_.gpu_budget_bytes[rank], .headroom = options_.headroom_bytes, .arena = bytes,
                                  .fixed = std::max(device_->fixed_bytes().at(rank), gpu_fixed_bytes(plan.ranks)), .planned = planned};
      if (plan.device == DeviceKind::kCuda) device_->cap_temporaries(rank, temporaries_cap(gpu, rank), gpu.planned);
    }
  }
  std::vector<std::pair<std::byte*, int64_t>> copied;
  for (StorageBank::Region& region : bank.regions()) {
    if (region.place.kind == Place::Kind::kNuma) {
      region.data = host_->allocate(region.place.index, region.name, buffer_class_name(region.buffer_class), region.bytes);
      if (region.buffer_class != BufferClass::kState) copied.emplace_back(region.data, memory::align_up(region.bytes, memory::kPageBytes));
      continue;
    }
    const int rank = region.place.index;
    region.data = device[rank] + used[rank];
    used[rank] += memory::align_up(region.bytes, memory::kPageBytes);
    // Gaps between tensors are never written by backward, yet are summed with the rest of a shard.
    if (options_.poison && region.buffer_class == BufferClass::kGradient) device_->fill(rank, region.data, 0, region.bytes);
  }
  register_for_copies(copied);
  for (EmittedProgram* program : programs) {
    for (const StorageRequest& request : program->emitter->storage().requests()) {
      const StorageBank::Region& region = bank.find(request.name);
      const int where = region.place.kind == Place::Kind::kGpu ? region.place.index : -1;
      for (const StorageRequest::Member& member : request.members) program->memory->bind(member.buffer, region.data + member.offset_bytes, where);
    }
  }

  add_state(bank);
}

void Engine::add_state(const StorageBank& bank) {
  const Plan& plan = sources_.plan;
  const UnitStream& units = training_.program.emitter->units();
  std::vector<std::byte*> staging(plan.ranks, nullptr);
  std::vector<std::vector<StateStore::Shard>> shards(units.count());
  for (UnitId id = 0; id < units.count(); ++id) {
    const UnitRecord& record = units.record(id);
    const StepMemory& memory = *training_.program.memory;
    for (size_t s = 0; s < record.unit.shards.size(); ++s) {
      const ShardRange& range = record.unit.shards[s];
      StateStore::Shard shard{.state = optim::StateBlocks(static_cast<float*>(memory.data(record.state[s])), range.elements()), .node = plan.node_of_rank.at(range.owner)};
      if (record.kept[s] != kNone) shard.weights = memory.data(record.kept[s]);
      if (record.resident) {
        shard.rank = range.owner;
        staging[range.owner] = bank.find(DeviceState::staging_name(range.owner)).data;
      }
      shards[id].push_back(shard);
    }
  }
  state_ = std::make_unique<StateStore>(sources_.model, plan.workload.compute, std::make_unique<DeviceState>(*device_, sources_.transfer, staging));
  for (UnitId id = 0; id < units.count(); ++id) state_->add(units.unit(id), std::move(shards[id]));
}

void Engine::register_for_copies(const std::vector<std::pair<std::byte*, int64_t>>& regions) {
  memory::PinnedRegistry* registry = device_->registry();
  if (!registry) return;
  constexpr int kThreads = 8;  // the driver's page pinning gains nothing from more
  checkpoint::for_each_parallel(regions.size(), kThreads, [&](size_t i) { registry->register_range(regions[i].first, regions[i].second, {}); });
  int64_t bytes = 0;
  for (const auto& [data, size] : regions) {
    registered_.push_back(data);
    bytes += size;
  }
  log_info("memory: ", bytes >> 20, " MiB of ", host_->mapped_bytes() >> 20, " MiB registered for copies");
}

void Engine::clear_state() { state_->clear(host_pools_.update); }
void Engine::publish_weights() { state_->publish(host_pools_.update); }
void Engine::set_next_step(int64_t step) {
  sources_.run.first_step = step;
  last_step_ = 0;
}

program::Executor& Engine::executor(Runner& runner) {
  if (!runner.executor) {
    program::ExecutorOptions options;
    options.watchdog = std::chrono::milliseconds(static_cast<int64_t>(options_.watchdog_seconds * 1000));
    options.before_stage = fault_ ? program::fault_hook(*fault_, runner.program.built.program) : options_.before_stage;
    options.on_failure = [this](const std::string& message, ExitCode code) { deadline_.start(message, code); };
    runner.executor = device_->make_executor(std::move(runner.program.built), std::move(options));
  }
  return *runner.executor;
}

void Engine::read_fault() {
  if (options_.fault.empty()) return;
  fault_ = program::parse_fault(options_.fault);
  for (const Runner* runner : {&training_, &evaluation_, &drain_}) {
    if (!program::concerns(*fault_, runner->program.built.program)) continue;
    log_warn("fault: OOM_FAULT is set: ", options_.fault);
    return;
  }
  throw ConfigError(cat("OOM_FAULT: ", options_.fault, ": chooses no stage of this run; kinds of stages: ", base::join(training_.program.built.program.kinds, ", ")));
}

void Engine::fill_batches(const ProgramEmitter& emitter, const StepMemory& memory, const std::vector<data::Batch>& batches) {
  OOM_CHECK_EQ(static_cast<int>(batches.size()), sources_.plan.ranks, "one batch a rank");
  int64_t valid = 0;
  for (int rank = 0; rank < sources_.plan.ranks; ++rank) {
    const data::Batch& batch = batches[rank];
    const auto put = [&](BufferId buffer, const std::vector<int32_t>& values) {
      OOM_CHECK_EQ(static_cast<int64_t>(values.size()), sources_.plan.tokens_per_rank(), "tokens of rank ", rank);
      std::memcpy(memory.data(buffer), values.data(), values.size() * sizeof(int32_t));
    };
    put(emitter.host_tokens()[rank], batch.inputs);
    put(emitter.host_targets()[rank], batch.targets);
    put(emitter.host_positions()[rank], batch.positions);
    if (!emitter.host_documents().empty()) fill_documents(memory.data(emitter.host_documents()[rank]), rank, batch);
    valid += batch.valid_targets;
  }
  sources_.run.valid_tokens = valid;
}

void Engine::fill_documents(void* to, int rank, const data::Batch& batch) {
  const std::vector<int32_t> limits = batch.cumulative_lengths(0, batch.sample_count);
  OOM_CHECK_LE(static_cast<int64_t>(limits.size()), sources_.plan.tokens_per_rank() + 1, "document limits of rank ", rank);
  std::memcpy(to, limits.data(), limits.size() * sizeof(int32_t));
  DocumentLimits& documents = sources_.run.documents.at(rank);
  documents = {.count = static_cast<int64_t>(limits.size())};
  for (size_t i = 1; i < limits.size(); ++i) documents.longest_tokens = std::max<int64_t>(documents.longest_tokens, limits[i] - limits[i - 1]);
}

StepResult Engine::train_step(int64_t step, const std::vector<data::Batch>& batches) {
  fill_batches(*training_.program.emitter, *training_.program.memory, batches);
  executor(training_).run_step(step);
  device_->end_step();
  last_step_ = step;
  return sources_.run.result;
}

void Engine::drain() {
  if (last_step_ == 0) return;
  executor(training_).drain();
  if (sources_.plan.deferred_layers > 0) {
    executor(drain_).run_step(last_step_ + 1);
    executor(drain_).drain();
  }
  sources_.run.first_step = last_step_ + 1;
  last_step_ = 0;
}

StepResult Engine::evaluate(const std::vector<data::Batch>& batches) {
  drain();
  fill_batches(*evaluation_.program.emitter, *evaluation_.program.memory, batches);
  executor(evaluation_).run_step(1);
  executor(evaluation_).drain();
  device_->end_step();
  return sources_.run.result;
}

void Engine::record_times(bool on) { executor(training_).record_times(on); }
std::vector<StageTime> Engine::stage_times() {
  executor(training_).drain();
  return executor(training_).stage_times();
}
const Program& Engine::training_program() const { return training_.executor ? training_.executor->program() : training_.program.built.program; }

}  // namespace oom::runtime
