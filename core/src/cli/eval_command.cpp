#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "runtime/evaluation.h"

namespace oom::cli {

int run_eval(const CommandLine& line) {
  runtime::Session session(line.path, line.overrides);
  const runtime::Evaluation evaluation = runtime::evaluate(session);
  if (line.has("json")) {
    std::cout << nlohmann::ordered_json{{"loss", evaluation.loss}, {"tokens", evaluation.tokens}}.dump() << "\n";
  } else {
    std::cout << "loss " << evaluation.loss << " over " << evaluation.tokens << " tokens\n";
  }
  return 0;
}

}  // namespace oom::cli
