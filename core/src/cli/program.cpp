#include <signal.h>

#include <boost/program_options.hpp>
#include <cstdlib>
#include <iostream>

#include "base/text.h"
#include "cli/command_line.h"
#include "oom/error.h"
#include "oom/log.h"
#include "oom/version.h"

namespace oom::cli {
namespace {

namespace po = boost::program_options;

struct Option {
  const char* name;
  const char* value;  // null: a flag
  const char* help;
};

struct Command {
  const char* name;
  const char* argument;  // null: none
  const char* help;
  std::vector<Option> options;
  int (*run)(const CommandLine&);  // null: not built yet
  bool takes_overrides = true;
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"train", "CONFIG.toml", "run training; --resume continues the newest complete checkpoint", {{"resume", nullptr, "continue the run in output.dir"}}, run_train},
      {"plan", "CONFIG.toml", "configure within the budgets, print memory and time; runs nothing",
       {{"explain", nullptr, "say what bounds the step, what makes the peaks, what lost, and what more memory would buy"}, {"json", nullptr, "print one JSON object"}, {"out", "plan.toml", "write the plan"}}, run_plan},
      {"calibrate", "CONFIG.toml", "short reference runs on this machine, unless it is calibrated for this model", {{"again", nullptr, "measure anew what is known of this model"}, {"out", "calibration.toml", "write the calibration here too"}}, run_calibrate},
      {"compare", "CONFIG.toml", "configure each path, run it briefly, choose", {{"out", "plan.toml", "write the chosen plan"}}, run_compare},
      {"eval", "CONFIG.toml", "mean loss of the model on the held-out data, else the config's data; no update", {{"json", nullptr, "print one JSON object"}}, run_eval},
      {"export", "CHECKPOINT", "write a Hugging Face directory", {{"out", "DIR", "the directory to make"}, {"dtype", "bf16|fp32", "of the weights (default bf16)"}}, run_export, false},
      {"config", "CONFIG.toml", "the resolved config with every default, as TOML", {}, run_config},
      {"inspect", "PATH", "a Hugging Face directory, a checkpoint, a plan or a plugin", {{"json", nullptr, "print one JSON object"}}, run_inspect, false},
      {"doctor", nullptr, "devices, NUMA nodes, limits, bandwidths, plugins", {{"json", nullptr, "print one JSON object"}}, run_doctor, false},
      {"report", "RUN_DIR", "one self-contained HTML page about a run, its path on stdout", {{"out", "report.html", "the page to write (default: RUN_DIR/report.html)"}}, run_report, false},
  };
  return all;
}

std::string usage() {
  std::string text = "oom trains every parameter of large mixture-of-experts models on one machine.\n\nusage: oom COMMAND [arguments]\n\n";
  for (const Command& command : commands()) {
    std::string left = cat("  ", command.name, " ", command.argument ? command.argument : "");
    left.resize(std::max<size_t>(left.size() + 1, 26), ' ');
    text += cat(left, command.help, command.run ? "" : " (not built yet)", "\n");
  }
  return text + "\n`oom COMMAND --help` lists a command's options. docs: README.md, configs/reference.toml\n";
}

po::options_description options_of(const Command& command) {
  po::options_description options(cat("usage: oom ", command.name, command.argument ? cat(" ", command.argument) : "", " [options]\n\n", command.help, "\n\noptions"));
  options.add_options()("help,h", "print this");
  for (const Option& option : command.options) {
    if (option.value) {
      options.add_options()(option.name, po::value<std::string>()->value_name(option.value), option.help);
    } else {
      options.add_options()(option.name, option.help);
    }
  }
  if (command.takes_overrides) {
    options.add_options()("set", po::value<std::vector<std::string>>()->composing()->value_name("table.key=value"), "override a key of the config; may be repeated");
  }
  return options;
}

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names{"--help"};
  if (command.takes_overrides) names.push_back("--set");
  for (const Option& option : command.options) names.push_back(cat("--", option.name));
  return names;
}

CommandLine parse(const Command& command, const std::vector<std::string>& arguments, bool& help) {
  po::options_description options = options_of(command);
  po::options_description all;
  all.add(options).add_options()("path", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("path", -1);
  po::variables_map values;
  try {
    po::store(po::command_line_parser(arguments).options(all).positional(positional).style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing).run(), values);
  } catch (const po::unknown_option& unknown) {
    const std::optional<std::string> near = base::nearest_name(unknown.get_option_name(), option_names(command));
    throw ConfigError(cat("oom ", command.name, ": unknown option ", unknown.get_option_name(), near ? cat("; near it: ", *near) : cat("; options: ", base::join(option_names(command), ", "))));
  } catch (const po::error& error) {
    throw ConfigError(cat("oom ", command.name, ": ", error.what(), "; see oom ", command.name, " --help"));
  }
  CommandLine line{.command = command.name};
  help = values.count("help") > 0;
  if (help) {
    std::cout << options;
    return line;
  }
  const std::vector<std::string> paths = values.count("path") ? values["path"].as<std::vector<std::string>>() : std::vector<std::string>{};
  const size_t expected = command.argument ? 1 : 0;
  if (paths.size() != expected) {
    throw ConfigError(cat("oom ", command.name, ": takes ", command.argument ? cat("one ", command.argument) : "no argument", "; got ", paths.size(), paths.empty() ? "" : cat(": ", base::join(paths, " "))));
  }
  if (command.argument) line.path = paths[0];
  if (command.takes_overrides && values.count("set")) line.overrides = values["set"].as<std::vector<std::string>>();
  for (const Option& option : command.options) {
    if (values.count(option.name)) line.options[option.name] = option.value ? values[option.name].as<std::string>() : "";
  }
  return line;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::cerr << usage();
    return static_cast<int>(ExitCode::kUsage);
  }
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    std::cout << usage();
    return 0;
  }
  if (arguments[0] == "--version") {
    std::cout << "oom " << OOM_SDK_VERSION << "\n";
    return 0;
  }
  for (const Command& command : commands()) {
    if (arguments[0] != command.name) continue;
    bool help = false;
    const CommandLine line = parse(command, {arguments.begin() + 1, arguments.end()}, help);
    if (help) return 0;
    if (!command.run) throw ConfigError(cat("oom ", command.name, ": not built yet in this version"));
    return command.run(line);
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::optional<std::string> near = base::nearest_name(arguments[0], names);
  throw ConfigError(cat("unknown command ", arguments[0], near ? cat("; near it: ", *near) : cat("; commands: ", base::join(names, ", "))));
}

// A result that was not written is no success: a full disk, a closed pipe.
int told(int status) {
  std::cout.flush();
  if (!std::cout) throw FileError("standard output: the result could not be written; check the disk's free space");
  return status;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  // Read by NCCL when it starts.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  // Read by CUDA when it starts: streams that wait for the host shall not hold up others for want of a hardware queue of their own.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // The same plan gives the same bits on the CPU device: MKL shall not choose its threads by the machine's load, nor its kernels by alignment.
  setenv("MKL_DYNAMIC", "FALSE", /*overwrite=*/0);
  setenv("MKL_CBWR", "AUTO", /*overwrite=*/0);
  // A file that may not grow further, or a log that nobody reads any more, is then a failed write and no death without a word.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  try {
    return told(dispatch({argv + 1, argv + argc}));
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    log_error("unexpected: ", error.what());
    return static_cast<int>(ExitCode::kBug);
  }
}

}  // namespace oom::cli
