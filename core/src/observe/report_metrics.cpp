#include "observe/report_metrics.h"

#include <algorithm>
#include <map>
#include <optional>

#include "oom/error.h"

namespace oom::observe {
namespace {

using Json = nlohmann::ordered_json;
using Column = std::vector<std::optional<double>>;
using Lines = std::map<int64_t, const nlohmann::json*>;  // by step

bool is_charted(const std::string& name) { return name != "step" && name != "time" && !name.starts_with("eval_"); }

void put(std::map<std::string, Column>& columns, const std::string& name, size_t row, size_t rows, const nlohmann::json& value) {
  if (!value.is_number()) return;
  Column& column = columns[name];
  column.resize(rows);
  column[row] = value.get<double>();
}

std::map<std::string, Column> columns_of(const Lines& lines) {
  std::map<std::string, Column> columns;
  size_t row = 0;
  for (const auto& [step, line] : lines) {
    for (const auto& [name, value] : line->items()) {
      if (!is_charted(name)) continue;
      if (!value.is_array()) put(columns, name, row, lines.size(), value);
      for (size_t i = 0; value.is_array() && i < value.size(); ++i) put(columns, cat(name, "/", i), row, lines.size(), value[i]);
    }
    ++row;
  }
  return columns;
}

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// One stretch of a column.
struct Stretch {
  std::optional<double> mean, low, high;
  Stretch(const Column& column, size_t begin, size_t end) {
    double sum = 0;
    int64_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!column[i]) continue;
      sum += *column[i];
      ++count;
      low = std::min(low.value_or(*column[i]), *column[i]);
      high = std::max(high.value_or(*column[i]), *column[i]);
    }
    if (count > 0) mean = sum / static_cast<double>(count);
  }
};

}  // namespace

MetricColumns metric_columns(const std::vector<nlohmann::json>& lines) {
  MetricColumns result;
  Lines by_step;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto step = lines[i].find("step");
    if (step == lines[i].end() || !step->is_number_integer()) {
      result.nameless.push_back(static_cast<int64_t>(i) + 1);
    } else {
      by_step[step->get<int64_t>()] = &lines[i];
    }
  }
  result.values["step"] = Json::array();
  if (by_step.empty()) return result;
  result.last_step = by_step.rbegin()->first;

  const size_t rows = by_step.size(), points = std::min(rows, kMostPoints);
  const auto begin_of = [&](size_t point) { return point * rows / points; };
  std::vector<int64_t> steps;
  for (const auto& entry : by_step) steps.push_back(entry.first);
  // A stretch stands at its last step.
  for (size_t p = 0; p < points; ++p) result.values["step"].push_back(steps[begin_of(p + 1) - 1]);
  for (const auto& [name, column] : columns_of(by_step)) {
    Json values = Json::array(), low = Json::array(), high = Json::array();
    for (size_t p = 0; p < points; ++p) {
      const Stretch stretch(column, begin_of(p), begin_of(p + 1));
      values.push_back(number(stretch.mean));
      low.push_back(number(stretch.low));
      high.push_back(number(stretch.high));
    }
    result.values[name] = std::move(values);
    if (rows == points) continue;
    result.low[name] = std::move(low);
    result.high[name] = std::move(high);
  }
  return result;
}

Json evaluation_columns(const std::vector<nlohmann::json>& lines) {
  std::map<int64_t, double> by_step;
  for (const nlohmann::json& line : lines) {
    const auto step = line.find("step"), loss = line.find("eval_loss");
    if (step == line.end() || loss == line.end() || !step->is_number_integer() || !loss->is_number()) continue;
    by_step[step->get<int64_t>()] = loss->get<double>();
  }
  if (by_step.empty()) return nullptr;
  Json columns{{"step", Json::array()}, {"loss", Json::array()}};
  for (const auto& [step, loss] : by_step) {
    columns["step"].push_back(step);
    columns["loss"].push_back(loss);
  }
  return columns;
}

}  // namespace oom::observe
