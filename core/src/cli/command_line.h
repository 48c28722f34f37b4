/// The command line: `oom COMMAND [PATH] [--set table.key=value ...] [options]`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace oom::cli {

struct CommandLine {
  std::string command;
  std::string path;                             ///< CONFIG.toml, CHECKPOINT or PATH; empty where a command takes none
  std::vector<std::string> overrides;           ///< of --set, in order
  std::map<std::string, std::string> options;   ///< other options by name without dashes; flags hold ""

  bool has(const std::string& option) const { return options.count(option) > 0; }
  std::optional<std::string> option(const std::string& name) const {
    const auto at = options.find(name);
    return at == options.end() ? std::nullopt : std::optional(at->second);
  }
};

/// Parses and runs; returns the process's exit status. Every error ends here, as one message on stderr.
int run_program(int argc, const char* const* argv);

// The commands. Results go to stdout; each returns an exit status or throws an oom::Error.
int run_train(const CommandLine& line);
int run_plan(const CommandLine& line);
int run_calibrate(const CommandLine& line);
int run_compare(const CommandLine& line);
int run_eval(const CommandLine& line);
int run_export(const CommandLine& line);
int run_config(const CommandLine& line);
int run_inspect(const CommandLine& line);
int run_report(const CommandLine& line);
int run_doctor(const CommandLine& line);

}  // namespace oom::cli
