/// A planned run made ready: engine with memory, weights loaded or initialised, data open.
#pragma once

#include <memory>

#include "comm/device_transfer.h"
#include "data/sample_stream.h"
#include "runtime/engine.h"
#include "runtime/planner.h"

namespace oom::runtime {

class PreparedRun {
 public:
  /// Admission is done: `planned` fits. Opens the data first, so that what is wrong with files is said before memory is taken.
  PreparedRun(Session& session, PlannedRun planned);

  /// Gives the model its first weights: from its files, or random.
  void initialise();

  const PlannedRun& planned() const { return planned_; }
  Engine& engine() { return *engine_; }
  const data::SampleStream& samples() const { return *samples_; }
  RunState& state() { return run_; }
  /// The batches of a training step, counted from 1, one a rank.
  std::vector<data::Batch> batches(int64_t step) const;

 private:
  Session& session_;
  PlannedRun planned_;
  RunState run_;
  std::unique_ptr<data::SampleStream> samples_;
  std::unique_ptr<comm::DeviceTransfer> transfer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace oom::runtime
