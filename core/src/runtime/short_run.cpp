#include "runtime/short_run.h"

#include <algorithm>
#include <chrono>

#include "runtime/prepared_run.h"

namespace oom::runtime {
namespace {

constexpr double kGpuWarmUpSeconds = 2;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

ShortRun run_briefly(const std::string& config_path, std::vector<std::string> overrides, const ShortRunOptions& options) {
  overrides.push_back(cat("model.weights=", "random"));
  Session session(config_path, overrides);
  session.doubt_costs(options.doubt);
  PreparedRun run(session, make_plan(session, Purpose::kMeasure), Purpose::kMeasure);
  run.initialise();
  run.engine().set_next_step(1);
  run.engine().record_times(options.record_stages);

  ShortRun result;
  std::vector<double> seconds;
  int step = 0;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto step_seconds = [&] {
    const auto start = now();
    ++step;
    (void)run.engine().train_step(step, run.batches(step));
    return std::chrono::duration<double>(now() - start).count();
  };
  const double warm_up_seconds = session.device() == DeviceKind::kCuda ? kGpuWarmUpSeconds : 0;
  for (double passed = 0; step < options.warm_up || passed < warm_up_seconds;) passed += step_seconds();
  for (int measured = 0; measured < options.measured; ++measured) {
    seconds.push_back(step_seconds());
    if (options.record_stages) result.stages.push_back(run.engine().stage_times());
  }
  run.engine().drain();
  result.step_seconds = median(std::move(seconds));
  result.gpu_peak_bytes = run.engine().gpu_peak_bytes();
  result.planned = run.planned();
  return result;
}

}  // namespace oom::runtime
