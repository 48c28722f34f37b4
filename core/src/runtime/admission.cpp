#include "runtime/admission.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/text.h"
#include "oom/log.h"
#include "runtime/fixed_memory.h"

namespace oom::runtime {
namespace {

namespace fs = std::filesystem;
using base::format_bytes;

std::vector<int64_t> split_evenly(int64_t total, int parts) {
  std::vector<int64_t> shares(static_cast<size_t>(parts), total / parts);
  for (int64_t i = 0; i < total % parts; ++i) ++shares[static_cast<size_t>(i)];
  return shares;
}

std::vector<int64_t> gpu_budgets(const config::Config& config, const Plan& plan, const Machine& machine) {
  if (config.budget().gpu_bytes) return std::vector<int64_t>(static_cast<size_t>(plan.ranks), *config.budget().gpu_bytes);
  if (plan.device == DeviceKind::kCpu) return {};
  if (!machine.is_target) {
    throw ConfigError(cat(config.where("budget", "gpu"), ": missing; this machine has ", machine.gpus.gpus.size(), " of the ", plan.ranks,
                          " GPUs planned for, so their memory must be stated; cure: gpu = \"80GiB\", or whatever they have"));
  }
  std::vector<int64_t> budgets;
  for (int rank = 0; rank < plan.ranks; ++rank) budgets.push_back(static_cast<int64_t>(static_cast<double>(machine.gpus.gpus[rank].memory_bytes) * (1 - kGpuMargin)));
  return budgets;
}

std::vector<int64_t> host_budgets(const config::Config& config, const Plan& plan, const Machine& machine, Purpose purpose) {
  const config::Budget& budget = config.budget();
  std::vector<int64_t> budgets = budget.host_bytes_by_node;
  if (budgets.empty()) budgets = split_evenly(budget.host_bytes.value_or(hardware::usable_host_bytes(machine.limits)), plan.numa_nodes);
  if (static_cast<int>(budgets.size()) != plan.numa_nodes) {
    throw ConfigError(cat(config.where("budget", "host"), ": lists ", budgets.size(), " NUMA nodes; the plan is for ", plan.numa_nodes));
  }
  const bool stated = budget.host_bytes || !budget.host_bytes_by_node.empty();
  if (stated && purpose != Purpose::kPlanOnly) hardware::check_host_budget(std::accumulate(budgets.begin(), budgets.end(), int64_t{0}), machine.limits);
  return budgets;
}

// Bytes of files below a folder; 0 when there is none.
int64_t folder_bytes(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) bytes += static_cast<int64_t>(at->file_size(ignored));
  }
  return bytes;
}

int64_t checkpoints_held(const config::Config& config) {
  const config::Checkpoint& checkpoint = config.checkpoint();
  const int64_t steps = config.train().steps;
  const int64_t regular = checkpoint.every > 0 ? steps / checkpoint.every : 0;
  const bool last = checkpoint.at_end && (checkpoint.every == 0 || steps % checkpoint.every != 0);
  // One more than is kept, while it is written.
  return std::min(regular + (last ? 1 : 0), checkpoint.keep + checkpoint.keep_best + 1);
}

}  // namespace

Machine read_machine(DeviceKind device, int ranks) {
  Machine machine;
  if (device == DeviceKind::kCuda) machine.gpus = hardware::list_gpus();
  machine.topology = hardware::Topology::detect();
  machine.limits = hardware::read_host_limits();
  machine.is_target = device == DeviceKind::kCpu || static_cast<int>(machine.gpus.gpus.size()) >= ranks;
  return machine;
}

int choose_numa_nodes(const config::Config& config, const Machine& machine, Purpose purpose) {
  const int here = static_cast<int>(machine.topology.nodes.size());
  const std::vector<int64_t>& listed = config.budget().host_bytes_by_node;
  if (listed.empty()) return machine.is_target ? std::min(here, kMaxNumaNodes) : 1;
  const int nodes = static_cast<int>(listed.size());
  if (nodes > kMaxNumaNodes) throw ConfigError(cat(config.where("budget", "host"), ": lists ", nodes, " NUMA nodes; at most ", kMaxNumaNodes, " are supported"));
  if (purpose != Purpose::kPlanOnly && nodes > here) throw ConfigError(cat(config.where("budget", "host"), ": lists ", nodes, " NUMA nodes; this machine has ", here));
  return nodes;
}

std::vector<int> choose_node_of_rank(const Machine& machine, DeviceKind device, int ranks, int numa_nodes) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool known = device == DeviceKind::kCuda && machine.is_target;
    const int node = known ? machine.topology.node_of_pci_device(machine.gpus.gpus[rank].pci_bus_id) : rank % numa_nodes;
    nodes.push_back(std::min(node, numa_nodes - 1));
  }
  return nodes;
}

Budgets read_budgets(const config::Config& config, const Plan& plan, const Machine& machine, Purpose purpose) {
  Budgets budgets{.gpu_bytes = gpu_budgets(config, plan, machine), .host_bytes = host_budgets(config, plan, machine, purpose)};
  if (!budgets.gpu_bytes.empty()) budgets.headroom_bytes = config.budget().headroom_bytes;
  return budgets;
}

std::vector<Shortfall> find_shortfalls(const MemoryAccount& account, const Budgets& budgets) {
  std::vector<Shortfall> shortfalls;
  const auto judge = [&](const PlaceAccount& place, int64_t budget) {
    if (place.peak_bytes > budget) shortfalls.push_back({place.place, place.peak_bytes, budget, place.at_peak});
  };
  for (size_t rank = 0; rank < budgets.gpu_bytes.size(); ++rank) judge(account.gpus.at(rank), budgets.gpu_bytes[rank] - budgets.headroom_bytes);
  for (size_t node = 0; node < budgets.host_bytes.size(); ++node) judge(account.nodes.at(node), budgets.host_bytes[node]);
  return shortfalls;
}

std::string describe(const std::vector<Shortfall>& shortfalls) {
  std::string text;
  for (const Shortfall& shortfall : shortfalls) {
    const bool gpu = shortfall.place.kind == Place::Kind::kGpu;
    text += cat(text.empty() ? "" : "\n", "  ", place_name(shortfall.place), " needs ", format_bytes(shortfall.needed_bytes), " (", base::group_digits(shortfall.needed_bytes), " bytes) of ",
                format_bytes(shortfall.budget_bytes), " (", gpu ? "budget.gpu less headroom" : "budget.host", "), ", format_bytes(shortfall.over_bytes()), " too many:");
    for (int c = 0; c < kBufferClasses; ++c) {
      if (shortfall.classes[c] > 0) text += cat("\n    ", buffer_class_name(static_cast<BufferClass>(c)), " ", format_bytes(shortfall.classes[c]));
    }
  }
  return text;
}

void add_fixed(PlaceAccount& account, const std::string& name, BufferClass buffer_class, int64_t bytes) {
  if (bytes <= 0) return;
  account.persistent[static_cast<size_t>(buffer_class)] += bytes;
  account.persistent_bytes += bytes;
  account.peak_bytes += bytes;
  account.at_peak[static_cast<size_t>(buffer_class)] += bytes;
  for (LiveBytes& live : account.live) {
    live.bytes += bytes;
    live.classes[static_cast<size_t>(buffer_class)] += bytes;
  }
  const MemoryObject object{name, buffer_class, bytes};
  const auto at = std::find_if(account.objects.begin(), account.objects.end(), [&](const MemoryObject& other) { return other.bytes < bytes; });
  account.objects.insert(at, object);
}

void check_disk(const config::Config& config, int64_t parameters) {
  const int64_t held = checkpoints_held(config);
  if (held == 0) return;
  const fs::path folder = config.output().dir;
  fs::path existing = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  if (error) return;  // a file system that does not tell; writing will
  const int64_t needed = 12 * parameters * held;
  const int64_t had = folder_bytes(folder / "checkpoints");  // replaced by the new ones
  const int64_t available = static_cast<int64_t>(space.available) + had;
  if (needed <= available) return;
  throw BudgetError(cat(config.where("output", "dir"), ": ", held, " checkpoints of ", format_bytes(12 * parameters), " need ", format_bytes(needed), "; the disk of ", existing.string(), " has ",
                        format_bytes(available), " for them. Choose another disk, lower checkpoint.keep, ", config.checkpoint().keep_best > 0 ? "checkpoint.keep_best, " : "", "or set checkpoint.at_end = false and checkpoint.every = 0"));
}

void check_memlock(const hardware::HostLimits& limits, int64_t host_bytes) {
  if (!limits.memlock_bytes || host_bytes <= *limits.memlock_bytes) return;
  log_info("memory: ", format_bytes(host_bytes), " are to be pinned, the limit of locked memory (ulimit -l) is ", format_bytes(*limits.memlock_bytes),
           "; CUDA does not count against it. Should registration fail all the same, raise it");
}

}  // namespace oom::runtime
