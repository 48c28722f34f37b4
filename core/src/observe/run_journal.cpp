#include "observe/run_journal.h"

#include <nlohmann/json.hpp>

#include "observe/metrics_log.h"

namespace oom::observe {

void RunJournal::started(int64_t after_step, int64_t steps) const { lines_.append({{"event", "start"}, {"time", unix_seconds()}, {"step", after_step}, {"steps", steps}}); }

void RunJournal::saved(int64_t step, const std::string& checkpoint, double seconds) const {
  lines_.append({{"event", "checkpoint"}, {"time", unix_seconds()}, {"step", step}, {"checkpoint", checkpoint}, {"seconds", seconds}});
}

void RunJournal::ended(int64_t step, const std::string& status, const std::string& message) const {
  nlohmann::ordered_json event{{"event", "end"}, {"time", unix_seconds()}, {"step", step}, {"status", status}};
  if (!message.empty()) event["message"] = message;
  lines_.append(event);
}

}  // namespace oom::observe
