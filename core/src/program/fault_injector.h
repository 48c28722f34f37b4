/// A debugging facility: makes chosen stages of a run fail, stall or wait, so that tests see what the engine makes of it.
///
/// The environment variable OOM_FAULT says which and how, as comma-separated pairs:
///     OOM_FAULT="action=throw,kind=update,layer=1,rank=0,step=2" oom train run.toml
/// kind, lane, layer, rank and step choose stages, each left out: any. A run's trace.json lists them ([output] trace_steps).
/// action is what happens in the stage's thread before its own action, on the CPU device and on CUDA alike:
///     throw   the stage fails with a DeviceError
///     stall   it waits until something else ends the run: for the watchdog
///     hang    it never returns, whatever else happens: for what comes after the watchdog
///     delay   each chosen stage waits a random time below `microseconds` (default 1000), drawn from `seed` (default 1)
/// Without the variable an executor gets no hook, and a stage costs what it did.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "oom/program.h"

namespace oom::program {

struct InjectedFault {
  enum class Action { kThrow, kStall, kHang, kDelay };
  Action action = Action::kThrow;
  std::optional<std::string> kind, lane;
  std::optional<int32_t> layer, rank;
  std::optional<int64_t> step;
  int64_t microseconds = 1000;
  uint64_t seed = 1;
};

/// Reads the text of OOM_FAULT. Throws ConfigError naming the faulty pair.
InjectedFault parse_fault(const std::string& text);

/// True when `fault` chooses a stage of `program`, in whatever step.
bool concerns(const InjectedFault& fault, const Program& program);

/// Returns what ExecutorOptions::before_stage is to call in runs of `program`; empty when the fault concerns none of its stages.
std::function<void(const StageContext&)> fault_hook(const InjectedFault& fault, const Program& program);

}  // namespace oom::program
