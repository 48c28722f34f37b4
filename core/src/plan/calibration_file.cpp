#include "plan/calibration_file.h"

#include <algorithm>

#include "base/text.h"
#include "config/toml_values.h"

namespace oom::plan {
namespace {

using config::TomlValue;

struct Rate {
  const char* key;
  double CostTable::*value;
};
constexpr Rate kRates[] = {{"gemm_flops", &CostTable::gemm_flops},
                           {"attention_flops", &CostTable::attention_flops},
                           {"other_flops", &CostTable::other_flops},
                           {"hbm_bytes", &CostTable::hbm_bytes},
                           {"h2d_bytes", &CostTable::h2d_bytes},
                           {"d2h_bytes", &CostTable::d2h_bytes},
                           {"pcie_bytes", &CostTable::pcie_bytes},
                           {"host_io_bytes", &CostTable::host_io_bytes},
                           {"host_dram_bytes", &CostTable::host_dram_bytes},
                           {"pool_weight", &CostTable::pool_weight},
                           {"update_parameters", &CostTable::update_parameters},
                           {"convert_parameters", &CostTable::convert_parameters},
                           {"peer_bytes", &CostTable::peer_bytes}};

struct Term {
  const char* key;
  double KindCost::*value;
};
constexpr Term kTerms[] = {{"per_arithmetic", &KindCost::per_arithmetic},
                           {"per_traffic", &KindCost::per_traffic},
                           {"fixed", &KindCost::fixed},
                           {"per_token", &KindCost::per_token},
                           {"per_token_context", &KindCost::per_token_context},
                           {"per_byte", &KindCost::per_byte},
                           {"per_parameter", &KindCost::per_parameter}};

[[noreturn]] void refuse(const TomlValue& value, const std::string& key, const std::string& what) {
  throw FileError(cat(value.position().text(), ": ", key, ": ", what, "; got ", value.text()));
}

void check_keys(const TomlValue& table, const std::string& where, const std::vector<std::string>& known) {
  for (const TomlValue::Member& member : table.as_table()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    throw FileError(cat(member.position.text(), ": ", where, member.key, ": unknown key; keys here: ", base::join(known, ", ")));
  }
}

template <typename Entries>
std::vector<std::string> keys_of(const Entries& entries) {
  std::vector<std::string> keys;
  for (const auto& entry : entries) keys.push_back(entry.key);
  return keys;
}

double read_cost(const TomlValue& table, const std::string& where, const char* key, double least) {
  const double value = table.get_number(key);
  if (value < least || value > 1e30) refuse(table.get(key), where + key, cat("must be from ", least, " to 1e30"));
  return value;
}

std::vector<ClockPoint> read_clock(const TomlValue& rates) {
  const std::vector<double> shares = rates.get_numbers("clock_shares"), seconds = rates.get_numbers("clock_seconds");
  if (shares.size() != seconds.size()) refuse(rates.get("clock_seconds"), "rates.clock_seconds", cat("must be as many as rates.clock_shares, ", shares.size()));
  std::vector<ClockPoint> clock;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!(shares[i] > (i > 0 ? shares[i - 1] : 0) && shares[i] <= 1)) refuse(rates.get("clock_shares"), "rates.clock_shares", "must rise from above 0 to at most 1");
    if (!(seconds[i] >= 0.1 && seconds[i] <= 10)) refuse(rates.get("clock_seconds"), "rates.clock_seconds", "must be from 0.1 to 10");
    clock.push_back({.share = shares[i], .seconds = seconds[i]});
  }
  return clock;
}

template <typename Choice>
Choice read_word(const TomlValue& table, const char* key, const char* first, Choice is_first, const char* second, Choice is_second) {
  const std::string& word = table.get_text(key);
  if (word != first && word != second) refuse(table.get(key), key, cat("must be ", first, " or ", second));
  return word == first ? is_first : is_second;
}

CalibrationProfile read_profile(const TomlValue& table) {
  check_keys(table, "profile.", {"geometry", "experts", "compute", "analytic_factor", "kinds"});
  CalibrationProfile profile{.geometry = table.get_text("geometry"), .experts = table.get_text("experts"), .compute = read_word(table, "compute", "fp32", ElementType::kFloat32, "bf16", ElementType::kBfloat16), .kinds = {}};
  if (table.find("analytic_factor")) profile.analytic_factor = read_cost(table, "profile.", "analytic_factor", 1e-6);
  for (const TomlValue::Member& kind : table.get_table("kinds").as_table()) {
    if (!kind.value.is(TomlValue::Kind::kTable)) refuse(kind.value, cat("profile.kinds.", kind.key), "must be a table");
    check_keys(kind.value, cat("profile.kinds.", kind.key, "."), keys_of(kTerms));
    KindCost& cost = profile.kinds[kind.key];
    for (const Term& term : kTerms) {
      if (kind.value.find(term.key)) cost.*term.value = read_cost(kind.value, cat("profile.kinds.", kind.key, "."), term.key, 0);
    }
  }
  return profile;
}

}  // namespace

const CalibrationProfile* Calibration::find(const std::string& geometry, const std::string& experts, ElementType compute) const {
  for (const CalibrationProfile& profile : profiles) {
    if (profile.geometry == geometry && profile.experts == experts && profile.compute == compute) return &profile;
  }
  return nullptr;
}

void Calibration::put(CalibrationProfile profile) {
  std::erase_if(profiles, [&](const CalibrationProfile& other) { return other.geometry == profile.geometry && other.experts == profile.experts && other.compute == profile.compute; });
  profiles.push_back(std::move(profile));
}

std::string calibration_toml(const Calibration& calibration) {
  TomlValue root;
  root.set("version", kCalibrationVersion);
  root.set("machine", calibration.machine);
  root.set("versions", calibration.versions);
  root.set("device", calibration.device == DeviceKind::kCuda ? "cuda" : "cpu");
  TomlValue& rates = root.table("rates");
  for (const Rate& rate : kRates) rates.set(rate.key, calibration.rates.*rate.value);
  if (!calibration.rates.clock.empty()) {
    TomlValue shares{TomlValue::Array{}}, seconds{TomlValue::Array{}};
    for (const ClockPoint& point : calibration.rates.clock) {
      shares.append(point.share);
      seconds.append(point.seconds);
    }
    rates.set("clock_shares", std::move(shares));
    rates.set("clock_seconds", std::move(seconds));
  }
  TomlValue profiles{TomlValue::Array{}};
  for (const CalibrationProfile& profile : calibration.profiles) {
    TomlValue table;
    table.set("geometry", profile.geometry);
    table.set("experts", profile.experts);
    table.set("compute", profile.compute == ElementType::kFloat32 ? "fp32" : "bf16");
    table.set("analytic_factor", profile.analytic_factor);
    TomlValue& kinds = table.table("kinds");
    for (const auto& [kind, cost] : profile.kinds) {
      TomlValue& terms = kinds.table(kind);
      for (const Term& term : kTerms) {
        if (cost.*term.value != 0) terms.set(term.key, cost.*term.value);
      }
    }
    profiles.append(std::move(table));
  }
  root.set("profile", std::move(profiles));
  return cat("# Written by oom calibrate. Rates are units a second. A GPU that computes for a share of the time (clock_shares) takes clock_seconds times\n",
             "# what a kind takes on one that always computes. That is the sum of the kind's terms in seconds: per_arithmetic and per_traffic times what its FLOPs and\n",
             "# its bytes of GPU memory take at those rates, fixed, per_token tokens, per_token_context tokens x sequence length, per_byte bytes, per_parameter parameters. A kind\n",
             "# that a profile does not hold takes on compute lanes analytic_factor times what the rates say.\n",
             config::write_toml(root));
}

namespace {

Calibration read_calibration(const TomlValue& root) {
  check_keys(root, "", {"version", "machine", "versions", "device", "rates", "profile"});
  if (root.get_integer("version") != kCalibrationVersion) {
    refuse(root.get("version"), "version", cat("this program reads version ", kCalibrationVersion, "; make the file again with oom calibrate"));
  }
  Calibration calibration{.machine = root.get_text("machine"), .versions = root.get_text("versions"), .device = read_word(root, "device", "cuda", DeviceKind::kCuda, "cpu", DeviceKind::kCpu),
                          .rates = {}, .profiles = {}};
  const TomlValue& rates = root.get_table("rates");
  std::vector<std::string> known = keys_of(kRates);
  known.insert(known.end(), {"clock_shares", "clock_seconds"});
  check_keys(rates, "rates.", known);
  for (const Rate& rate : kRates) calibration.rates.*rate.value = read_cost(rates, "rates.", rate.key, 1e-6);
  if (rates.find("clock_shares") || rates.find("clock_seconds")) calibration.rates.clock = read_clock(rates);
  if (root.find("profile")) {
    for (const TomlValue& profile : root.get_array("profile")) {
      if (!profile.is(TomlValue::Kind::kTable)) refuse(profile, "profile", "must be tables");
      calibration.put(read_profile(profile));
    }
  }
  return calibration;
}

}  // namespace

Calibration parse_calibration(const std::string& text, const std::string& name) { return read_calibration(config::parse_toml(text, name)); }
Calibration load_calibration(const std::string& path) { return read_calibration(config::parse_toml_file(path)); }

}  // namespace oom::plan
