#include <iostream>

#include "base/file.h"
#include "cli/command_line.h"
#include "plan/plan_file.h"
#include "runtime/planner.h"

namespace oom::cli {

int run_compare(const CommandLine& line) {
  runtime::Session session(line.path, line.overrides);
  const runtime::PlanAnswer answer = find_plan(session, runtime::Purpose::kMeasure);
  if (!answer.run) throw BudgetError(cat(answer.refusal.why, "\n", answer.refusal.nearest.describe()));
  const runtime::PlannedRun& run = *answer.run;
  std::cout << run.evidence << "\n";
  if (const std::optional<std::string> out = line.option("out")) {
    base::overwrite_text_file(*out, plan::plan_toml(run.plan, prediction_of(run)));
    std::cout << "plan: " << *out << "\n";
  }
  return 0;
}

}  // namespace oom::cli
