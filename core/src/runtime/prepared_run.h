/// A planned run made ready: engine with memory, weights loaded or initialised, data open.
#pragma once

#include <memory>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/source_tensors.h"
#include "comm/device_transfer.h"
#include "runtime/engine.h"
#include "runtime/planner.h"
#include "runtime/run_data.h"

namespace oom::runtime {

class PreparedRun {
 public:
  /// Admission is done: `planned` fits. Opens the data first, and checks that the run can go on from `resumed` (null: it begins), so that what is
  /// wrong with files is said before memory is taken.
  PreparedRun(Session& session, PlannedRun planned, Purpose purpose, const checkpoint::CheckpointReader* resumed = nullptr);

  /// Gives the model its first weights: from its files, or random.
  void initialise();
  /// Gives it the state of the checkpoint that it goes on from.
  void restore(const checkpoint::CheckpointReader& from);
  /// What the model's files held; empty when its weights were random.
  const checkpoint::SourceTensors& came_in() const { return came_in_; }

  const PlannedRun& planned() const { return planned_; }
  Engine& engine() { return *engine_; }
  const RunData& data() const { return data_; }
  RunState& state() { return run_; }
  /// The batches of a training step, counted from 1, one a rank.
  std::vector<data::Batch> batches(int64_t step) const;

 private:
  Session& session_;
  PlannedRun planned_;
  RunState run_;
  checkpoint::SourceTensors came_in_;
  RunData data_;
  std::unique_ptr<comm::DeviceTransfer> transfer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace oom::runtime
