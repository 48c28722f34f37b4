#include "cli/command_line.h"
#include "oom/error.h"
namespace oom::cli {
int run_inspect(const CommandLine&) { throw ConfigError("oom inspect: not built yet in this version"); }
}  // namespace oom::cli
