#include "optim/cpu_isa.h"

#include <cstdlib>

#include "oom/error.h"

namespace oom::optim {

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable: return "portable";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvx512: return "avx512";
    case CpuIsa::kAvx512Bf16: return "avx512_bf16";
  }
  return "unknown";
}

bool cpu_supports(CpuIsa isa) {
  const auto avx512 = [] {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  };
  switch (isa) {
    case CpuIsa::kPortable: return true;
    case CpuIsa::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::kAvx512: return avx512();
    case CpuIsa::kAvx512Bf16: return avx512() && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

CpuIsa choose_cpu_isa(std::string_view wanted) {
  CpuIsa best = CpuIsa::kPortable;
  for (CpuIsa isa : kEveryCpuIsa) {
    if (wanted == cpu_isa_name(isa)) {
      if (!cpu_supports(isa)) throw ConfigError(cat("OOM_CPU_ISA: this processor has no ", wanted, ". Unset it, or use portable."));
      return isa;
    }
    if (cpu_supports(isa)) best = isa;
  }
  if (!wanted.empty())
    throw ConfigError(cat("OOM_CPU_ISA: must be one of portable, avx2, avx512, avx512_bf16; got '", wanted, "'"));
  return best;
}

CpuIsa active_cpu_isa() {
  static const CpuIsa isa = [] {
    const char* wanted = std::getenv("OOM_CPU_ISA");
    return choose_cpu_isa(wanted ? wanted : "");
  }();
  return isa;
}

}  // namespace oom::optim
