#include <iostream>

#include "cli/command_line.h"
#include "cli/machine_report.h"

namespace oom::cli {

int run_doctor(const CommandLine& line) {
  const nlohmann::ordered_json report = machine_report();
  std::cout << (line.has("json") ? report.dump(2) + "\n" : machine_text(report));
  return 0;
}

}  // namespace oom::cli
