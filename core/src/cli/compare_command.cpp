#include <filesystem>
#include <fstream>
#include <iostream>

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
    std::ofstream file(*out, std::ios::trunc);
    file << plan::plan_toml(run.plan, prediction_of(run));
    if (!file.flush()) throw FileError(cat(*out, ": the plan cannot be written; check the folder and its permissions"));
    std::cout << "plan: " << *out << "\n";
  }
  return 0;
}

}  // namespace oom::cli
