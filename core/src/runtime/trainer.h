/// The training loop: run folder, data, engine, steps, metrics, checkpoints, interruption.
#pragma once

#include "runtime/session.h"

namespace oom::runtime {

/// Trains as the configuration says. `resume`: goes on from the newest complete checkpoint of the run folder. Returns kDone, or kInterrupted after
/// SIGINT or SIGTERM, a checkpoint written. Throws every other end of a run as an Error.
ExitCode train(Session& session, bool resume);

}  // namespace oom::runtime
