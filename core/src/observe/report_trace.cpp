#include "observe/report_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace oom::observe {
namespace {

using Json = nlohmann::ordered_json;

struct Event {
  int64_t process = 0, thread = 0;
  std::string kind;
  int64_t step = -1;  // -1: predicted
  int64_t layer = -1;
  double start_us = 0, length_us = 0;
};

template <typename Value>
Value value_or(const nlohmann::json& object, const char* name, Value otherwise) {
  if (!object.is_object()) return otherwise;
  const auto at = object.find(name);
  if (at == object.end()) return otherwise;
  if constexpr (std::is_same_v<Value, std::string>) {
    return at->is_string() ? at->get<std::string>() : otherwise;
  } else if constexpr (std::is_integral_v<Value>) {
    return at->is_number_integer() ? at->get<Value>() : otherwise;
  } else {
    return at->is_number() ? at->get<Value>() : otherwise;
  }
}

class Reader {
 public:
  explicit Reader(const nlohmann::json& trace) {
    if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) return;
    for (const nlohmann::json& event : trace["traceEvents"]) read(event);
  }

  Json columns() {
    std::map<int64_t, std::vector<const Event*>> measured;
    std::vector<const Event*> predicted;
    for (const Event& event : events_) (event.step >= 0 ? measured[event.step] : predicted).push_back(&event);
    if (measured.empty()) return nullptr;
    const auto& [step, last] = *measured.rbegin();
    double zero = INFINITY;
    for (const Event* event : last) zero = std::min(zero, event->start_us);
    for (const Event* event : predicted) zero = std::min(zero, event->start_us);
    Json result{{"step", step}};
    const Json drawn = bars(last, zero), expected = bars(predicted, zero);
    result["lanes"] = lanes_;
    result["kinds"] = kinds_;
    result["measured"] = drawn;
    result["predicted"] = expected;
    Json& steps = result["steps"] = Json::array();
    for (const auto& [number, stages] : measured) steps.push_back(sums(number, stages));
    return result;
  }

 private:
  using Lane = std::pair<int64_t, int64_t>;

  void read(const nlohmann::json& event) {
    const std::string phase = value_or<std::string>(event, "ph", "");
    const Lane lane{value_or<int64_t>(event, "pid", 0), value_or<int64_t>(event, "tid", 0)};
    const nlohmann::json arguments = event.is_object() ? event.value("args", nlohmann::json::object()) : nlohmann::json::object();
    if (phase == "M") {
      const std::string what = value_or<std::string>(event, "name", ""), name = value_or<std::string>(arguments, "name", "");
      if (what == "process_name") process_names_[lane.first] = name;
      if (what == "thread_name") thread_names_[lane] = name;
      return;
    }
    const double start = value_or(event, "ts", -1.0), length = value_or(event, "dur", -1.0);
    if (phase != "X" || !std::isfinite(start) || !std::isfinite(length) || length < 0) return;
    events_.push_back({lane.first, lane.second, value_or<std::string>(event, "cat", "unknown"), value_or<int64_t>(arguments, "step", -1), value_or<int64_t>(arguments, "layer", -1), start, length});
  }

  // "measured rank 0" and "predicted rank 0" are the same place.
  std::string place(int64_t process) const {
    const auto at = process_names_.find(process);
    if (at == process_names_.end()) return "unknown";
    const size_t space = at->second.find(' ');
    return space == std::string::npos ? at->second : at->second.substr(space + 1);
  }
  std::string lane_name(const Event& event) const {
    const auto at = thread_names_.find({event.process, event.thread});
    return at == thread_names_.end() ? "unknown" : at->second;
  }

  size_t lane_index(const Event& event) {
    const auto [at, fresh] = lane_indices_.try_emplace({place(event.process), lane_name(event)}, lanes_.size());
    if (fresh) lanes_.push_back({{"place", at->first.first}, {"lane", at->first.second}});
    return at->second;
  }
  size_t kind_index(const std::string& kind) {
    const auto [at, fresh] = kind_indices_.try_emplace(kind, kinds_.size());
    if (fresh) kinds_.push_back(kind);
    return at->second;
  }

  // Tenths of a microsecond are as fine as anybody looks.
  static double milliseconds(double us) { return std::round(us * 10) / 1e4; }

  Json bars(const std::vector<const Event*>& events, double zero) {
    Json bars = Json::array();
    for (const Event* event : events) {
      bars.push_back({lane_index(*event), kind_index(event->kind), event->layer, milliseconds(event->start_us - zero), milliseconds(event->length_us)});
    }
    return bars;
  }

  Json sums(int64_t step, const std::vector<const Event*>& events) const {
    std::map<std::pair<std::string, std::string>, std::pair<int64_t, double>> kinds;
    double begin = INFINITY, end = 0;
    for (const Event* event : events) {
      auto& [stages, seconds] = kinds[{lane_name(*event), event->kind}];
      ++stages;
      seconds += event->length_us * 1e-6;
      begin = std::min(begin, event->start_us);
      end = std::max(end, event->start_us + event->length_us);
    }
    Json list = Json::array();
    for (const auto& [name, sum] : kinds) list.push_back({{"lane", name.first}, {"kind", name.second}, {"stages", sum.first}, {"seconds", sum.second}});
    return {{"step", step}, {"seconds", (end - begin) * 1e-6}, {"kinds", std::move(list)}};
  }

  std::vector<Event> events_;
  std::map<int64_t, std::string> process_names_;
  std::map<Lane, std::string> thread_names_;
  std::map<std::pair<std::string, std::string>, size_t> lane_indices_;
  std::map<std::string, size_t> kind_indices_;
  Json lanes_ = Json::array(), kinds_ = Json::array();
};

}  // namespace

Json trace_columns(const nlohmann::json& trace) { return Reader(trace).columns(); }

}  // namespace oom::observe
