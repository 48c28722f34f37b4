/// Admission: what the machine and [budget] allow, and whether an account fits. Runs before the first large allocation.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "hardware/gpu.h"
#include "hardware/host_limits.h"
#include "hardware/topology.h"
#include "oom/accountant.h"
#include "oom/plan.h"

namespace oom::runtime {

/// What a plan is made for. `oom plan` believes the stated budgets: it plans for machines one does not have.
enum class Purpose { kTrain, kEvaluate, kMeasure, kPlanOnly };

/// This machine, and whether it is the one that is planned for.
struct Machine {
  hardware::GpuList gpus;  ///< empty on the CPU device
  hardware::Topology topology;
  hardware::HostLimits limits;
  bool is_target = true;   ///< it has the devices that the run asks for
};
Machine read_machine(DeviceKind device, int ranks);

/// NUMA nodes to plan for: as many as [budget] host lists, else the target's, else 1. Throws ConfigError when a run lists more than there are.
int choose_numa_nodes(const config::Config& config, const Machine& machine, Purpose purpose);
/// The node near each rank's GPU; rank after rank where nothing says.
std::vector<int> choose_node_of_rank(const Machine& machine, DeviceKind device, int ranks, int numa_nodes);

struct Budgets {
  std::vector<int64_t> gpu_bytes;   ///< by rank; empty: only the host's budget bounds it (CPU device without budget.gpu)
  int64_t headroom_bytes = 0;       ///< kept free of each GPU budget
  std::vector<int64_t> host_bytes;  ///< by NUMA node
};
/// Throws ConfigError where a budget must be stated, BudgetError when the cgroup's limit is below it.
Budgets read_budgets(const config::Config& config, const Plan& plan, const Machine& machine, Purpose purpose);

/// A place that needs more than it has.
struct Shortfall {
  Place place;
  int64_t needed_bytes = 0;
  int64_t budget_bytes = 0;  ///< headroom taken off
  ClassBytes classes{};
  int64_t over_bytes() const { return needed_bytes - budget_bytes; }
};
/// An account that needs exactly its budget fits.
std::vector<Shortfall> find_shortfalls(const MemoryAccount& account, const Budgets& budgets);
/// A line a shortfall, with numbers by class.
std::string describe(const std::vector<Shortfall>& shortfalls);

/// Adds `bytes` that are there all the time.
void add_fixed(PlaceAccount& account, const std::string& name, BufferClass buffer_class, int64_t bytes);

/// Throws BudgetError when the disk of output.dir cannot hold the checkpoints that the run writes: 12 bytes a parameter each.
void check_disk(const config::Config& config, int64_t parameters);
/// Notes when locked memory is limited to less than `host_bytes`. No refusal: CUDA registered 4 GiB under a limit of 64 KiB and without capabilities
/// (measured), because its driver does not count against RLIMIT_MEMLOCK.
void check_memlock(const hardware::HostLimits& limits, int64_t host_bytes);

}  // namespace oom::runtime
