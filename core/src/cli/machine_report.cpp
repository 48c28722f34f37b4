#include "cli/machine_report.h"

#include "base/text.h"
#include "hardware/core_plan.h"
#include "hardware/gpu.h"
#include "hardware/host_bandwidth.h"
#include "hardware/host_limits.h"
#include "hardware/topology.h"
#include "runtime/library_versions.h"
#include "runtime/session.h"

namespace oom::cli {
namespace {

using Json = nlohmann::ordered_json;
using base::format_bytes;

constexpr int64_t kThreadBytes = int64_t{32} << 20;  // a thread's share of the host measurement
constexpr int64_t kLinkBytes = int64_t{128} << 20;

template <typename Value>
Json optional(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json versions() {
  Json json = Json::array();
  for (const runtime::LibraryVersion& library : runtime::library_versions()) json.push_back({{"name", library.name}, {"built", library.built}, {"found", library.found}});
  return json;
}

Json gpu_report(const hardware::GpuList& gpus, const hardware::Topology& topology) {
  Json json = Json::array();
  for (const hardware::GpuInfo& gpu : gpus.gpus) {
    Json entry{{"index", gpu.index}, {"name", gpu.name}, {"pci", gpu.pci_bus_id}, {"numa_node", topology.node_of_pci_device(gpu.pci_bus_id)}, {"memory_bytes", gpu.memory_bytes},
               {"multiprocessors", gpu.multiprocessors}, {"compute_capability", cat(gpu.compute_major, ".", gpu.compute_minor)}};
    try {
      entry["free_bytes"] = hardware::gpu_free_bytes(gpu.index);
      const hardware::GpuLinkBandwidth link = hardware::measure_gpu_link(gpu.index, kLinkBytes);
      entry["link_gb_s"] = {{"h2d", link.h2d_gb_s}, {"d2h", link.d2h_gb_s}, {"both_h2d", link.both_h2d_gb_s}, {"both_d2h", link.both_d2h_gb_s}};
    } catch (const Error& error) {
      entry["why_unusable"] = error.what();
    }
    json.push_back(std::move(entry));
  }
  return json;
}

// GB/s from one GPU to another; null on the diagonal and where they cannot reach each other.
Json peer_report(const hardware::GpuList& gpus) {
  Json rows = Json::array();
  for (size_t from = 0; from < gpus.gpus.size(); ++from) {
    Json row = Json::array();
    for (size_t to = 0; to < gpus.gpus.size(); ++to) {
      Json rate = nullptr;
      if (from != to && gpus.peer_access.at(from).at(to)) rate = hardware::measure_peer_gb_s(static_cast<int>(from), static_cast<int>(to), kLinkBytes);
      row.push_back(rate);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json numa_report(const hardware::Topology& topology) {
  Json json = Json::array();
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    const hardware::NumaNode& info = topology.nodes[node];
    Json entry{{"numa_node", node}, {"os_index", info.os_index}, {"memory_bytes", info.memory_bytes}, {"cores", info.cores.size()}};
    if (!info.cores.empty()) {
      try {
        const hardware::HostBandwidth rate = hardware::measure_host_bandwidth(topology.first_cpus(static_cast<int>(node)), kThreadBytes);
        entry["bandwidth_gb_s"] = {{"read", rate.read_gb_s}, {"write", rate.write_gb_s}, {"copy", rate.copy_gb_s}};
      } catch (const Error& error) {
        entry["bandwidth"] = error.what();
      }
    }
    json.push_back(std::move(entry));
  }
  return json;
}

Json limit_report(const hardware::HostLimits& limits) {
  return {{"memory_total_bytes", limits.memory_total_bytes},
          {"memory_available_bytes", limits.memory_available_bytes},
          {"cgroup_limit_bytes", optional(limits.cgroup_limit_bytes)},
          {"cgroup_available_bytes", optional(limits.cgroup_available_bytes)},
          {"usable_bytes", hardware::usable_host_bytes(limits)},
          {"memlock_bytes", optional(limits.memlock_bytes)},
          {"shared_memory_bytes", limits.shared_memory_bytes},
          {"cpu_quota", optional(limits.cpu_quota)}};
}

const char* kind_name(const std::optional<Kind>& kind) {
  if (!kind) return "unknown";
  switch (*kind) {
    case Kind::kModelAdapter: return "model_adapter";
    case Kind::kExpertStrategy: return "expert_strategy";
    case Kind::kActivationStrategy: return "activation_strategy";
    case Kind::kSelector: return "selector";
  }
  return "unknown";
}

Json plugin_report(std::vector<std::string>& folders) {
  runtime::PluginHost plugins({});
  for (const auto& folder : plugins.registry().folders()) folders.push_back(folder.string());
  Json json = Json::array();
  for (const plugin::PluginReport& plugin : plugins.registry().report()) {
    json.push_back({{"name", plugin.name}, {"kind", kind_name(plugin.kind)}, {"version", plugin.version}, {"usable", plugin.why_unusable.empty()}, {"why_unusable", plugin.why_unusable},
                    {"summary", plugin.summary}, {"path", plugin.path.string()}});
  }
  return json;
}

// Text.

std::string text_or(const Json& value, const char* otherwise) { return value.is_string() && !value.get<std::string>().empty() ? value.get<std::string>() : std::string(otherwise); }
std::string bytes_or(const Json& value, const char* otherwise) { return value.is_number() ? format_bytes(value.get<int64_t>()) : std::string(otherwise); }
std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}
std::string rate(const Json& value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value.get<double>());
  return text;
}

std::string gpu_text(const Json& report) {
  std::string text = "GPUs\n";
  if (report["gpus"].empty()) text += cat("  none: ", text_or(report["why_no_gpu"], "unknown"), "\n");
  for (const Json& gpu : report["gpus"]) {
    text += cat("  ", gpu["index"].get<int>(), ": ", gpu["name"].get<std::string>(), ", ", format_bytes(gpu["memory_bytes"].get<int64_t>()), ", ", bytes_or(gpu.value("free_bytes", Json()), "unknown"),
                " free, compute capability ", gpu["compute_capability"].get<std::string>(), ", NUMA node ", gpu["numa_node"].get<int>(), "\n");
    if (gpu.contains("why_unusable")) text += cat("     unusable: ", gpu["why_unusable"].get<std::string>(), "\n");
    if (!gpu.contains("link_gb_s")) continue;
    const Json& link = gpu["link_gb_s"];
    text += cat("     link: in ", rate(link["h2d"]), ", out ", rate(link["d2h"]), " GB/s; both at once ", rate(link["both_h2d"]), " and ", rate(link["both_d2h"]), "\n");
  }
  if (report["peer_gb_s"].size() > 1) {
    text += "GPU to GPU, GB/s (row to column)\n";
    for (const Json& row : report["peer_gb_s"]) {
      text += " ";
      for (const Json& value : row) text += cat(" ", padded(value.is_null() ? "-" : rate(value), 7));
      text += "\n";
    }
  }
  return text;
}

std::string host_text(const Json& report) {
  std::string text = "NUMA nodes\n";
  for (const Json& node : report["numa_nodes"]) {
    text += cat("  ", node["numa_node"].get<int>(), ": ", node["cores"].get<int>(), " cores, ", format_bytes(node["memory_bytes"].get<int64_t>()));
    if (node.contains("bandwidth_gb_s")) {
      const Json& bandwidth = node["bandwidth_gb_s"];
      text += cat("; read ", rate(bandwidth["read"]), ", write ", rate(bandwidth["write"]), ", copy ", rate(bandwidth["copy"]), " GB/s");
    }
    text += "\n";
  }
  const Json& limits = report["limits"];
  text += cat("host memory\n  ", format_bytes(limits["memory_total_bytes"].get<int64_t>()), " in all, ", format_bytes(limits["memory_available_bytes"].get<int64_t>()), " available, cgroup limit ",
              bytes_or(limits["cgroup_limit_bytes"], "none"), "\n  budget when [budget] host is left out: ", format_bytes(limits["usable_bytes"].get<int64_t>()), "\n  locked memory ",
              bytes_or(limits["memlock_bytes"], "unlimited"), ", shared memory ", format_bytes(limits["shared_memory_bytes"].get<int64_t>()), ", processors' time ",
              limits["cpu_quota"].is_null() ? "unlimited" : rate(limits["cpu_quota"]), "\n");
  return cat(text, "core map\n", report["core_map"].get<std::string>());
}

std::string plugin_text(const Json& report) {
  std::string text = "plugins\n";
  for (const Json& plugin : report["plugins"]) {
    text += cat("  ", padded(plugin["name"].get<std::string>(), 16), padded(plugin["kind"].get<std::string>(), 22), padded(text_or(plugin["version"], "?"), 8),
                plugin["usable"].get<bool>() ? cat("usable: ", plugin["summary"].get<std::string>()) : cat("unusable: ", plugin["why_unusable"].get<std::string>()), "\n");
  }
  text += "  looked in:";
  for (const Json& folder : report["plugin_folders"]) text += cat(" ", folder.get<std::string>());
  return text + "\n";
}

}  // namespace

Json machine_report() {
  const hardware::GpuList gpus = hardware::list_gpus();
  const hardware::Topology topology = hardware::Topology::detect();
  const hardware::HostLimits limits = hardware::read_host_limits();
  std::vector<int> node_of_rank;
  for (const hardware::GpuInfo& gpu : gpus.gpus) node_of_rank.push_back(topology.node_of_pci_device(gpu.pci_bus_id));
  if (node_of_rank.empty()) node_of_rank.push_back(0);
  Json report;
  report["versions"] = versions();
  report["gpus"] = gpu_report(gpus, topology);
  report["why_no_gpu"] = gpus.why_none;
  report["peer_gb_s"] = peer_report(gpus);
  report["numa_nodes"] = numa_report(topology);
  report["limits"] = limit_report(limits);
  report["core_map"] = hardware::plan_cores(topology, {.node_of_rank = node_of_rank, .cpu_quota = limits.cpu_quota}).describe();
  std::vector<std::string> folders;
  report["plugins"] = plugin_report(folders);
  report["plugin_folders"] = folders;
  return report;
}

std::string machine_text(const Json& report) {
  std::string text = "versions\n";
  for (const Json& library : report["versions"]) {
    text += cat("  ", padded(library["name"].get<std::string>(), 20), "built with ", padded(text_or(library["built"], "-"), 12), "found ", text_or(library["found"], "-"), "\n");
  }
  return cat(text, gpu_text(report), host_text(report), plugin_text(report));
}

}  // namespace oom::cli
