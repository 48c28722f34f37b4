#include "hardware/thread_placement.h"

#include <pthread.h>
#include <sched.h>

#include <memory>
#include <string>

namespace oom::hardware {
namespace {

constexpr int kMostCpus = 8192;

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

std::unique_ptr<cpu_set_t, FreeCpuSet> empty_cpu_set() {
  std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(kMostCpus));
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMostCpus), set.get());
  return set;
}

}  // namespace

bool pin_this_thread(const std::vector<int>& cpus) {
  const auto set = empty_cpu_set();
  for (int cpu : cpus)
    if (cpu >= 0 && cpu < kMostCpus) CPU_SET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get());
  return pthread_setaffinity_np(pthread_self(), CPU_ALLOC_SIZE(kMostCpus), set.get()) == 0;
}

std::vector<int> allowed_cpus() {
  const auto set = empty_cpu_set();
  std::vector<int> cpus;
  if (sched_getaffinity(0, CPU_ALLOC_SIZE(kMostCpus), set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu)
    if (CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(kMostCpus), set.get())) cpus.push_back(cpu);
  return cpus;
}

void name_this_thread(std::string_view name) { pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str()); }

}  // namespace oom::hardware
