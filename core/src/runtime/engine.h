/// Executes a plan: owns the memory, the training state, the host thread pools and the executors of one run.
/// One thread, the trainer's, makes all calls. After a call has thrown, only destruction is allowed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample_stream.h"
#include "hardware/core_plan.h"
#include "memory/host_arena.h"
#include "memory/worker_pool.h"
#include "program/fault_injector.h"
#include "runtime/device_runtime.h"
#include "runtime/failure_deadline.h"
#include "runtime/program_set.h"
#include "runtime/state_store.h"
#include "runtime/storage_bank.h"

namespace oom::runtime {

struct EngineOptions {
  bool poison = false;                 ///< memory starts as NaN instead of zero, gradient buffers excepted
  double watchdog_seconds = 0;         ///< 0: off
  std::function<void(const StageContext&)> before_stage;  ///< delays and failures in tests
  std::optional<hardware::Topology> topology;             ///< stands for this machine's own in tests
  std::string fault;                                      ///< as OOM_FAULT, see program/fault_injector.h; empty: none
  std::vector<int64_t> gpu_budget_bytes;                  ///< by rank; empty: no cap
  int64_t headroom_bytes = 0;
  std::vector<int64_t> gpu_planned_bytes;                 ///< peaks of the plan by rank: what temporaries may take of the headroom when the context takes more than planned; empty: nothing
};

class Engine {
 public:
  Engine(const ProgramSources& sources, const EngineOptions& options);
  ~Engine();

  StateStore& state() { return *state_; }
  /// Zeroes the state, moments included. Before masters are written.
  void clear_state();
  /// Makes working weights from masters; after masters were written.
  void publish_weights();
  /// The next step to train, counted from 1; shard counters continue from it.
  void set_next_step(int64_t step);

  /// Trains one step on the ranks' batches. Throws DivergedError, DeviceError, or what a stage threw.
  StepResult train_step(int64_t step, const std::vector<data::Batch>& batches);
  /// Applies the updates that are still pending. State may be read afterwards.
  void drain();
  /// Loss of the batches under the current weights; drains first.
  StepResult evaluate(const std::vector<data::Batch>& batches);

  void record_times(bool on);
  std::vector<StageTime> stage_times();
  const Program& training_program() const;
  std::vector<int64_t> gpu_peak_bytes() { return device_->peak_bytes(); }
  /// Bytes of the host arena, of all nodes or of one.
  int64_t host_arena_bytes() const { return host_->mapped_bytes(); }
  int64_t host_arena_bytes(int node) const { return memory::align_up(host_->layout(node).size_bytes(), memory::kPageBytes); }
  std::span<memory::WorkerPool* const> pools() const { return host_pools_.update; }

 private:
  struct Runner {
    EmittedProgram program;
    std::unique_ptr<program::Executor> executor;
  };
  void allocate(const std::vector<EmittedProgram*>& programs);
  void add_state(const StorageBank& bank);
  void register_for_copies(const std::vector<std::pair<std::byte*, int64_t>>& regions);
  void fill_batches(const ProgramEmitter& emitter, const StepMemory& memory, const std::vector<data::Batch>& batches);
  void fill_documents(void* to, int rank, const data::Batch& batch);
  program::Executor& executor(Runner& runner);
  void read_fault();

  FailureDeadline deadline_;  // first: it watches the destruction of all others
  ProgramSources sources_;
  EngineOptions options_;
  const hardware::Topology topology_;
  std::optional<program::InjectedFault> fault_;
  hardware::CorePlan cores_;
  std::vector<std::unique_ptr<memory::WorkerPool>> pools_;
  HostPools host_pools_;
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<memory::HostArena> host_;
  std::vector<std::byte*> registered_;  // regions that devices copy from or to
  std::unique_ptr<StateStore> state_;
  Runner training_, evaluation_, drain_;
  int64_t last_step_ = 0;  // 0: none since the last drain
};

}  // namespace oom::runtime
