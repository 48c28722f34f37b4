#include "program/fault_injector.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/text.h"
#include "oom/error.h"

namespace oom::program {
namespace {

template <typename Number>
Number number(std::string_view key, std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) throw ConfigError(cat("OOM_FAULT: ", key, ": must be a whole number; got '", text, "'"));
  return value;
}

InjectedFault::Action action_of(std::string_view word) {
  if (word == "throw") return InjectedFault::Action::kThrow;
  if (word == "stall") return InjectedFault::Action::kStall;
  if (word == "hang") return InjectedFault::Action::kHang;
  if (word == "delay") return InjectedFault::Action::kDelay;
  throw ConfigError(cat("OOM_FAULT: action: must be throw, stall, hang or delay; got '", word, "'"));
}

bool chooses(const InjectedFault& fault, const std::vector<std::string>& kinds, const Stage& stage) {
  return (!fault.kind || *fault.kind == kinds[stage.kind]) && (!fault.lane || *fault.lane == lane_name(stage.lane.lane)) &&
         (!fault.layer || *fault.layer == stage.layer) && (!fault.rank || *fault.rank == stage.rank);
}

// The same for a stage and step in every run, whichever thread comes first.
std::chrono::microseconds delay_of(const InjectedFault& fault, const Stage& stage, int64_t step) {
  std::seed_seq seeds{static_cast<int64_t>(fault.seed), step, int64_t{stage.kind}, int64_t{stage.layer}, int64_t{stage.part}, int64_t{stage.lane.index}};
  std::minstd_rand random(seeds);
  return std::chrono::microseconds(static_cast<int64_t>(random()) % fault.microseconds);
}

void happen(const InjectedFault& fault, const StageContext& context) {
  constexpr std::chrono::milliseconds kLook{1};
  switch (fault.action) {
    case InjectedFault::Action::kThrow: throw DeviceError("failure injected by OOM_FAULT");
    case InjectedFault::Action::kStall:
      while (!context.aborted()) std::this_thread::sleep_for(kLook);
      return;
    case InjectedFault::Action::kHang:
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    case InjectedFault::Action::kDelay: std::this_thread::sleep_for(delay_of(fault, *context.stage, context.step)); return;
  }
}

}  // namespace

InjectedFault parse_fault(const std::string& text) {
  static constexpr const char* kKeys[] = {"action", "kind", "lane", "layer", "rank", "step", "microseconds", "seed"};
  InjectedFault fault;
  bool acts = false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string pair = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    if (value.empty()) throw ConfigError(cat("OOM_FAULT: must be key=value pairs separated by commas; got '", pair, "'"));
    if (key == "action") fault.action = action_of(value), acts = true;
    else if (key == "kind") fault.kind = value;
    else if (key == "lane") fault.lane = value;
    else if (key == "layer") fault.layer = number<int32_t>(key, value);
    else if (key == "rank") fault.rank = number<int32_t>(key, value);
    else if (key == "step") fault.step = number<int64_t>(key, value);
    else if (key == "microseconds") fault.microseconds = number<int64_t>(key, value);
    else if (key == "seed") fault.seed = number<uint64_t>(key, value);
    else throw ConfigError(cat("OOM_FAULT: unknown key '", key, "'; keys: ", base::join(std::vector<std::string>(std::begin(kKeys), std::end(kKeys)), ", ")));
  }
  if (!acts) throw ConfigError("OOM_FAULT: action is missing: throw, stall, hang or delay");
  if (fault.microseconds < 1) throw ConfigError(cat("OOM_FAULT: microseconds: must be at least 1; got ", fault.microseconds));
  return fault;
}

bool concerns(const InjectedFault& fault, const Program& program) {
  return std::any_of(program.stages.begin(), program.stages.end(), [&](const Stage& stage) { return chooses(fault, program.kinds, stage); });
}

std::function<void(const StageContext&)> fault_hook(const InjectedFault& fault, const Program& program) {
  if (!concerns(fault, program)) return nullptr;
  return [fault, kinds = program.kinds](const StageContext& context) {
    if (fault.step && *fault.step != context.step) return;
    if (chooses(fault, kinds, *context.stage)) happen(fault, context);
  };
}

}  // namespace oom::program
