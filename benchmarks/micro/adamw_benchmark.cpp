// AdamW on the host: G parameters a second and bytes a second, by instruction set, gradient type, partials and threads.
// 28 bytes a parameter with one BF16 gradient and BF16 weights: the bound is the memory's read and write bandwidth.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "hardware/thread_placement.h"
#include "memory/host_arena.h"
#include "memory/worker_pool.h"
#include "optim/adamw.h"

namespace oom::optim {
namespace {

constexpr int64_t kParameters = 64 << 20;

void update(benchmark::State& run, CpuIsa isa, ElementType gradient, int partials, int threads, bool publish) {
  if (!cpu_supports(isa)) return run.SkipWithError("not on this processor");
  std::vector<int> cpus = hardware::allowed_cpus();
  if (threads > static_cast<int>(cpus.size())) return run.SkipWithError("fewer processors");
  cpus.resize(threads);
  memory::WorkerPool pool("benchmark", cpus);
  memory::HostArenaOptions options;
  const int64_t gradient_bytes = kParameters * element_bytes(gradient);
  options.nodes = {{state_bytes(kParameters) + partials * gradient_bytes + 2 * kParameters, -1, cpus}};
  memory::HostArena arena(options);
  AdamWJob job;
  job.state = StateBlocks(reinterpret_cast<float*>(arena.allocate(0, "state", "state", state_bytes(kParameters))), kParameters);
  std::vector<const void*> addresses;
  for (int p = 0; p < partials; ++p) {
    std::byte* data = arena.allocate(0, "gradient", "gradient", gradient_bytes);
    std::memset(data, 0x3a, gradient_bytes);
    addresses.push_back(data);
  }
  job.gradients = {gradient, addresses};
  if (publish) job.publish = {ElementType::kBF16, arena.allocate(0, "weights", "working weight", 2 * kParameters)};
  for (auto _ : run) {
    benchmark::DoNotOptimize(adamw_update_parallel(pool, job, 0, kParameters, isa));
    ++job.step.step;
  }
  const auto updated = static_cast<double>(run.iterations() * kParameters);
  const double bytes = 24.0 + static_cast<double>(partials * element_bytes(gradient)) + (publish ? 2.0 : 0.0);
  run.counters["Gparam/s"] = benchmark::Counter(updated / 1e9, benchmark::Counter::kIsRate);
  run.counters["GB/s"] = benchmark::Counter(updated * bytes / 1e9, benchmark::Counter::kIsRate);
}

void publish(benchmark::State& run, CpuIsa isa, int threads) {
  if (!cpu_supports(isa)) return run.SkipWithError("not on this processor");
  std::vector<int> cpus = hardware::allowed_cpus();
  cpus.resize(std::min<size_t>(threads, cpus.size()));
  memory::WorkerPool pool("benchmark", cpus);
  memory::HostArenaOptions options;
  options.nodes = {{state_bytes(kParameters) + 2 * kParameters, -1, cpus}};
  memory::HostArena arena(options);
  const StateBlocks state(reinterpret_cast<float*>(arena.allocate(0, "state", "state", state_bytes(kParameters))), kParameters);
  const Publish target{ElementType::kBF16, arena.allocate(0, "weights", "working weight", 2 * kParameters)};
  for (auto _ : run) publish_weights_parallel(pool, state, 0, kParameters, target, isa);
  run.counters["Gparam/s"] = benchmark::Counter(static_cast<double>(run.iterations() * kParameters) / 1e9, benchmark::Counter::kIsRate);
}

void register_all() {
  const int processors = static_cast<int>(hardware::allowed_cpus().size());
  const auto name = [](const char* what, CpuIsa isa, int threads) { return std::string(what) + "/" + std::string(cpu_isa_name(isa)) + "/threads:" + std::to_string(threads); };
  for (int threads = 1; threads <= processors; threads *= 2) {
    for (CpuIsa isa : kEveryCpuIsa) {
      if (isa == CpuIsa::kPortable && threads > 1) continue;
      benchmark::RegisterBenchmark(name("adamw_bf16", isa, threads).c_str(),
                                   [=](benchmark::State& run) { update(run, isa, ElementType::kBF16, 1, threads, true); })->UseRealTime()->Unit(benchmark::kMillisecond);
    }
    const CpuIsa best = active_cpu_isa();
    benchmark::RegisterBenchmark(name("adamw_bf16_without_publishing", best, threads).c_str(),
                                 [=](benchmark::State& run) { update(run, best, ElementType::kBF16, 1, threads, false); })->UseRealTime()->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(name("adamw_2x_bf16", best, threads).c_str(),
                                 [=](benchmark::State& run) { update(run, best, ElementType::kBF16, 2, threads, true); })->UseRealTime()->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(name("adamw_fp32", best, threads).c_str(),
                                 [=](benchmark::State& run) { update(run, best, ElementType::kFP32, 1, threads, true); })->UseRealTime()->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(name("publish_bf16", best, threads).c_str(),
                                 [=](benchmark::State& run) { publish(run, best, threads); })->UseRealTime()->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace oom::optim

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  oom::optim::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
