/// Which instruction set the optimizer's host kernels use. All of them give the same bits.
#pragma once

#include <string_view>

namespace oom::optim {

/// kAvx512Bf16 rounds with vcvtne2ps2bf16, kAvx512 with integer operations.
enum class CpuIsa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
inline constexpr CpuIsa kEveryCpuIsa[] = {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

std::string_view cpu_isa_name(CpuIsa isa);
/// Says whether this processor and operating system can run `isa`.
bool cpu_supports(CpuIsa isa);
/// Returns the best set this processor has, or what the environment variable OOM_CPU_ISA (portable, avx2, avx512, avx512_bf16) asks for.
/// Read once. Throws ConfigError when the variable names no set or one that this processor lacks.
CpuIsa active_cpu_isa();
/// The rule of active_cpu_isa for a given value of the variable; empty = the best.
CpuIsa choose_cpu_isa(std::string_view wanted);

}  // namespace oom::optim
