#include "optim/cpu_isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/error.h"

namespace oom::optim {
namespace {

TEST(CpuIsa, TakesTheBestUnlessAsked) {
  EXPECT_TRUE(cpu_supports(choose_cpu_isa("")));
  for (CpuIsa isa : kEveryCpuIsa) {
    if (cpu_supports(isa)) {
      EXPECT_EQ(choose_cpu_isa(cpu_isa_name(isa)), isa);
      EXPECT_GE(choose_cpu_isa(""), isa);
    } else {
      EXPECT_THROW(choose_cpu_isa(cpu_isa_name(isa)), ConfigError);
    }
  }
}

TEST(CpuIsa, RefusesOtherNames) {
  try {
    choose_cpu_isa("sse9");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("OOM_CPU_ISA: must be one of portable, avx2, avx512, avx512_bf16; got 'sse9'"));
  }
}

}  // namespace
}  // namespace oom::optim
