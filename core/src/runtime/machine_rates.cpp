#include "runtime/machine_rates.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "hardware/core_plan.h"
#include "hardware/host_bandwidth.h"
#include "memory/worker_pool.h"
#include "optim/adamw.h"
#include "runtime/device_costs.h"
#if OOM_WITH_CUDA
#include "runtime/gpu_clock.h"
#endif

namespace oom::runtime {
namespace {

constexpr double kGiga = 1e9;
constexpr double kUpdateTraffic = 28;  // bytes a parameter: state read and written, a BF16 gradient read, a BF16 weight written
constexpr int64_t kUpdatedParameters = int64_t{32} << 20;

// Zeros at a 64-byte boundary, as state and weights lie, on the node whose threads touch them first.
class AlignedBytes {
 public:
  AlignedBytes(memory::WorkerPool& node, int64_t bytes) : data_(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlignment))) {
    node.parallel_for(bytes, [&](int64_t begin, int64_t end, int) { std::memset(data_ + begin, 0, static_cast<size_t>(end - begin)); });
  }
  ~AlignedBytes() { ::operator delete(data_, kAlignment); }
  AlignedBytes(const AlignedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  std::byte* data_;
};

template <typename Work>
double best_seconds(const Work& work) {
  double best = 1e30;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

PoolRates measure_node(const hardware::CorePlan::Node& cores) {
  memory::WorkerPool update("calibrate update", cores.update), prepare("calibrate prepare", cores.prepare);
  AlignedBytes state(update, optim::state_bytes(kUpdatedParameters)), gradient(update, 2 * kUpdatedParameters), weights(update, 2 * kUpdatedParameters);
  const optim::StateBlocks blocks(reinterpret_cast<float*>(state.data()), kUpdatedParameters);
  const void* partial = gradient.data();
  const optim::Publish publish{optim::ElementType::kBF16, weights.data()};
  const optim::AdamWJob job{.state = blocks, .gradients = {optim::ElementType::kBF16, std::span(&partial, 1)}, .step = {}, .without_decay = {}, .publish = publish};
  return {.update_parameters = kUpdatedParameters / best_seconds([&] { optim::adamw_update_parallel(update, job, 0, kUpdatedParameters); }),
          .convert_parameters = kUpdatedParameters / best_seconds([&] { optim::publish_weights_parallel(prepare, blocks, 0, kUpdatedParameters, publish); })};
}

void measure_links(const hardware::GpuList& gpus, int ranks, CostTable& rates) {
  const auto count = std::min<size_t>(gpus.gpus.size(), static_cast<size_t>(ranks));
  if (count == 0) return;
  const hardware::GpuLinkBandwidth alone = hardware::measure_gpu_link(gpus.gpus[0].index);
  rates.h2d_bytes = alone.h2d_gb_s * kGiga;
  rates.d2h_bytes = alone.d2h_gb_s * kGiga;
  rates.pcie_bytes = (alone.both_h2d_gb_s + alone.both_d2h_gb_s) * kGiga;
  // All GPUs at once: what the host's side gives to copies together.
  std::vector<hardware::GpuLinkBandwidth> loaded(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { loaded[i] = hardware::measure_gpu_link(gpus.gpus[i].index); });
  for (std::thread& thread : threads) thread.join();
  double together = 0;
  for (const hardware::GpuLinkBandwidth& link : loaded) together += (link.both_h2d_gb_s + link.both_d2h_gb_s) * kGiga;
  rates.host_io_bytes = std::max(together, rates.pcie_bytes);
  if (count > 1) {
    const double peer = hardware::measure_peer_gb_s(gpus.gpus[0].index, gpus.gpus[1].index) * kGiga;
    if (peer > 0) rates.peer_bytes = peer;
  }
}

}  // namespace

std::vector<PoolRates> measure_pools(const hardware::CorePlan& cores) {
  std::vector<PoolRates> rates;
  for (const hardware::CorePlan::Node& node : cores.nodes) rates.push_back(measure_node(node));
  return rates;
}

CostTable measure_machine_rates(const Machine& machine, DeviceKind device, int ranks) {
  CostTable rates = analytic_costs(device);
  const int nodes = static_cast<int>(machine.topology.nodes.size());
  const hardware::CorePlan cores = hardware::plan_cores(machine.topology, {.node_of_rank = choose_node_of_rank(machine, device, ranks, nodes), .cpu_quota = machine.limits.cpu_quota});
  const hardware::HostBandwidth all = hardware::measure_host_bandwidth(machine.topology.first_cpus(0));
  rates.host_dram_bytes = std::max(all.read_gb_s, all.copy_gb_s) * kGiga;
  // Shards are spread over the nodes, and a step waits for the last of them.
  const std::vector<PoolRates> pools = measure_pools(cores);
  rates.update_parameters = std::ranges::min(pools, {}, &PoolRates::update_parameters).update_parameters;
  rates.convert_parameters = std::ranges::min(pools, {}, &PoolRates::convert_parameters).convert_parameters;
  // Memory gives no less than AdamW moves, which on some machines is more than plain reads and copies reach.
  rates.host_dram_bytes = std::max(rates.host_dram_bytes, kUpdateTraffic * rates.update_parameters);
  for (int node = 0; node < nodes && nodes > 1; ++node) {
    log_info("calibrate: NUMA node ", node, ": ", pools[node].update_parameters / kGiga, " G parameters/s updated, ", pools[node].convert_parameters / kGiga, " converted");
  }
  if (device == DeviceKind::kCuda) {
    measure_links(machine.gpus, ranks, rates);
#if OOM_WITH_CUDA
    if (!machine.gpus.gpus.empty()) rates.clock = measure_gpu_clock(machine.gpus.gpus[0].index);
#endif
    return rates;
  }
  // The CPU device copies with one thread a lane.
  const hardware::HostBandwidth one = hardware::measure_host_bandwidth({});
  rates.h2d_bytes = rates.d2h_bytes = rates.peer_bytes = one.copy_gb_s / 2 * kGiga;
  rates.pcie_bytes = 2 * rates.h2d_bytes;
  rates.host_io_bytes = std::max(rates.pcie_bytes, all.copy_gb_s / 2 * kGiga) * std::max(1, nodes);
  return rates;
}

}  // namespace oom::runtime
