#include "observe/report_data.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "observe/json_lines.h"
#include "observe/report_metrics.h"
#include "observe/report_trace.h"
#include "observe/run_record.h"
#include "oom/error.h"

namespace oom::observe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kLargestText = int64_t{16} << 20;
constexpr int64_t kLargestTrace = int64_t{1} << 30;
constexpr size_t kNotedLines = 3;

// A process that trains holds the folder's lock.
bool is_running(const fs::path& folder) {
  const int lock = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (lock < 0) return false;
  const bool held = ::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(lock);
  return held;
}

std::string text_of(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}
int64_t integer_of(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number_integer() ? at->get<int64_t>() : 0;
}

class Gathered {
 public:
  explicit Gathered(const fs::path& folder) : folder_(folder), files_({"metrics.jsonl", "run.json", "config.toml"}) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) throw FileError(cat(folder.string(), ": is no folder; name a run folder, what output.dir was"));
    const bool any = std::any_of(files_.begin(), files_.end(), [&](const char* file) { return fs::exists(folder / file, error); });
    if (!any) throw FileError(cat(folder.string(), ": holds no run: none of metrics.jsonl, run.json and config.toml is there; name a run folder, what output.dir was"));
    data_ = {{"title", title()}, {"state", nullptr}, {"notes", Json::array()}, {"missing", Json::object()}};
  }

  Json data() {
    part("run", [this] { add_run(); });
    part("metrics", [this] { add_metrics(); });
    part("expert_load", [this] { add_expert_load(); });
    part("trace", [this] { add_trace(); });
    part("stage_kinds", [this] { add_stage_kinds(); });
    part("events", [this] { add_events(); });
    for (const char* name : {"plan", "config"}) {
      part(name, [&] {
        const fs::path file = folder_ / cat(name, ".toml");
        if (fs::exists(file)) data_[cat(name, "_toml")] = base::read_text_file(file, kLargestText);
      });
    }
    add_state();
    return std::move(data_);
  }

 private:
  std::string title() const {
    const fs::path name = fs::absolute(folder_).lexically_normal();
    return (name.has_filename() ? name : name.parent_path()).filename().string();
  }
  void note(const std::string& text) { data_["notes"].push_back(text); }
  void miss(const char* what, const std::string& sentence) { data_["missing"][what] = sentence; }

  // A part that cannot be read is left out and named.
  void part(const char* name, const std::function<void()>& gather) {
    std::string fault;
    try {
      gather();
      return;
    } catch (const FileError& error) {
      fault = error.what();
    } catch (const nlohmann::json::exception& error) {
      fault = cat(folder_.string(), ": ", name, ": ", error.what());
    }
    note(fault);
    data_.erase(name);
    if (!data_["missing"].contains(name)) miss(name, cat("Not readable: ", fault));
  }

  nlohmann::json read_object(const fs::path& path, int64_t limit) const {
    nlohmann::json object = nlohmann::json::parse(base::read_text_file(path, limit), nullptr, false);
    if (!object.is_object()) throw FileError(cat(path.string(), ": is no JSON object; it is damaged"));
    return object;
  }

  // Lines of a file, its faults among the notes.
  std::vector<nlohmann::json> read_lines(const fs::path& path) {
    ReadLines read = read_json_lines(path);
    for (size_t i = 0; i < std::min(read.faults.size(), kNotedLines); ++i) note(read.faults[i] + "; the line is left out");
    if (read.faults.size() > kNotedLines) note(cat(path.string(), ": ", read.faults.size() - kNotedLines, " more lines are no JSON objects and left out"));
    if (read.ends_early) note(cat(path.string(), ": the last line is half-written and left out"));
    return std::move(read.objects);
  }

  void add_run() {
    const fs::path file = folder_ / "run.json";
    if (!fs::exists(file)) return miss("run", "No `run.json` in this folder: it was written by a version that did not record plan, memory and predictions.");
    const nlohmann::json run = read_object(file, kLargestTrace);
    if (integer_of(run, "version") != kRunRecordVersion) {
      throw FileError(cat(file.string(), ": version: this program reads ", kRunRecordVersion, "; got ", run.contains("version") ? run["version"].dump() : "none"));
    }
    check_run(file, run);
    data_["run"] = run;
  }

  // The page relies on these; one that lacks them is damaged.
  static void check_run(const fs::path& file, const nlohmann::json& run) {
    for (const char* part : {"model", "plan", "predicted", "machine", "versions"}) {
      if (!run.contains(part) || !run[part].is_object()) throw FileError(cat(file.string(), ": ", part, ": is no object; the file is damaged"));
    }
    if (!run.contains("memory") || !run["memory"].is_array()) throw FileError(cat(file.string(), ": memory: is no list; the file is damaged"));
  }

  void add_metrics() {
    const fs::path file = folder_ / "metrics.jsonl";
    miss("metrics", "No step has ended yet.");
    miss("evaluation", "No held-out loss: `eval.every` with `eval.path` or `eval.holdout_samples` records it.");
    if (!fs::exists(file)) return;
    const std::vector<nlohmann::json> lines = read_lines(file);
    MetricColumns columns = metric_columns(lines);
    if (!columns.nameless.empty()) note(cat(file.string(), ": ", columns.nameless.size(), " lines have no step and are left out"));
    last_step_ = columns.last_step;
    data_["metrics"] = std::move(columns.values);
    if (!columns.low.empty()) {
      data_["low"] = std::move(columns.low);
      data_["high"] = std::move(columns.high);
    }
    Json evaluation = evaluation_columns(lines);
    if (evaluation.is_null()) return;
    data_["evaluation"] = std::move(evaluation);
    data_["missing"].erase("evaluation");
  }

  // Of the step that every run sums up, for where none was traced.
  void add_stage_kinds() {
    const fs::path file = folder_ / "stage_kinds.json";
    miss("stage_kinds", "Not recorded yet: the twentieth step, or the last of fewer, is summed by kind of stage.");
    if (!fs::exists(file)) return;
    const nlohmann::json sums = read_object(file, kLargestText);
    if (!sums.contains("kinds") || !sums["kinds"].is_array()) throw FileError(cat(file.string(), ": kinds: is no list; the file is damaged"));
    data_["stage_kinds"] = sums;
    data_["missing"].erase("stage_kinds");
  }

  // The last record in full, and of each the ratio of every routed layer's busiest expert to the layer's mean.
  void add_expert_load() {
    const fs::path file = folder_ / "expert_load.jsonl";
    miss("expert_load", "Not recorded: `output.expert_load_every` says every how many steps tokens are counted by layer and expert (0: never).");
    if (!fs::exists(file)) return;
    Json last, history = Json::array();
    for (const nlohmann::json& line : read_lines(file)) {
      const auto layers = line.at("tokens").get<std::vector<std::vector<int64_t>>>();
      const int64_t step = line.at("step").get<int64_t>();
      Json ratios = Json::array();
      for (const std::vector<int64_t>& layer : layers) {
        const double sum = static_cast<double>(std::accumulate(layer.begin(), layer.end(), int64_t{0}));
        if (sum > 0) ratios.push_back(static_cast<double>(*std::max_element(layer.begin(), layer.end())) * static_cast<double>(layer.size()) / sum);
      }
      if (ratios.empty()) continue;
      history.push_back({{"step", step}, {"ratios", std::move(ratios)}});
      last = {{"step", step}, {"tokens", layers}};
    }
    if (last.is_null()) return;
    last["history"] = std::move(history);
    data_["expert_load"] = std::move(last);
  }

  void add_trace() {
    const fs::path file = folder_ / "trace.json";
    miss("trace", "No step was traced: `output.trace_steps` names the steps whose stages are recorded.");
    if (!fs::exists(file)) return;
    Json columns = trace_columns(read_object(file, kLargestTrace));
    if (columns.is_null()) throw FileError(cat(file.string(), ": holds no measured stage"));
    data_["trace"] = std::move(columns);
  }

  void add_events() {
    const fs::path file = folder_ / "events.jsonl";
    if (!fs::exists(file)) return;
    Json starts = Json::array(), checkpoints = Json::array();
    for (const nlohmann::json& event : read_lines(file)) {
      const std::string what = text_of(event, "event");
      const int64_t step = integer_of(event, "step");
      if (what == "start") {
        started_ = true;
        end_ = nullptr;
        steps_ = integer_of(event, "steps");
        if (step > 0) starts.push_back(step);
      } else if (what == "checkpoint") {
        checkpoints.push_back({{"step", step}, {"name", text_of(event, "checkpoint")}});
      } else if (what == "end") {
        end_ = event;
      }
    }
    data_["starts"] = std::move(starts);
    data_["checkpoints"] = std::move(checkpoints);
  }

  void add_state() {
    std::string name = "unknown", why;
    if (is_running(folder_)) {
      name = "running";
    } else if (end_.is_object()) {
      name = text_of(end_, "status");
      why = text_of(end_, "message");
    } else if (started_) {
      name = "ended";
      why = "it did not say why: killed, or the machine stopped";
    }
    std::string text = last_step_ == 0 ? "no step yet" : cat("after step ", last_step_, steps_ > 0 ? cat(" of ", steps_) : "");
    if (!why.empty()) text += cat("; ", why);
    data_["state"] = {{"name", name}, {"text", text}};
  }

  fs::path folder_;
  std::vector<const char*> files_;
  Json data_;
  int64_t last_step_ = 0, steps_ = 0;
  bool started_ = false;
  nlohmann::json end_;
};

}  // namespace

Json report_data(const fs::path& folder) { return Gathered(folder).data(); }

}  // namespace oom::observe
