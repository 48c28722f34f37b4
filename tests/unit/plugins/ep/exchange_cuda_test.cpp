// The exchange between GPUs against the same plan on the CPU device.
#include "expert_parallel_run.h"
#include "hardware/gpu.h"

namespace oom::runtime {
namespace {

struct Case {
  int ranks;
  std::vector<std::string> settings;
  double tolerance;
};

class ExpertParallelCuda : public ExpertParallelRun, public ::testing::WithParamInterface<Case> {};

TEST_P(ExpertParallelCuda, AgreesWithTheCpuDevice) {
  const hardware::GpuList gpus = hardware::list_gpus();
#if !OOM_WITH_CUDA
  GTEST_SKIP() << "built without CUDA";
#endif
  if (static_cast<int>(gpus.gpus.size()) < GetParam().ranks) GTEST_SKIP() << GetParam().ranks << " ranks need as many GPUs; here are " << gpus.gpus.size() << " " << gpus.why_none;
  std::vector<std::string> overrides = GetParam().settings;
  overrides.push_back(cat("engine.ranks=", GetParam().ranks));
  const Outcome expected = train(overrides);
  overrides.insert(overrides.end(), {"engine.device=cuda", "budget.host=16GiB"});
  const Outcome outcome = train(overrides);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(outcome.losses[step], expected.losses[step], GetParam().tolerance * expected.losses[step]) << "step " << step + 1;
    EXPECT_NEAR(outcome.norms[step], expected.norms[step], 10 * GetParam().tolerance * expected.norms[step]) << "step " << step + 1;
  }
}

const std::vector<std::string> kWhole{"precision.compute=fp32", "train.updates=overlapped"};
const std::vector<std::string> kRounds{"precision.compute=fp32", "train.updates=overlapped", "ep.routing_chunk=7", "ep.receive_rows=30"};
const std::vector<std::string> kDeferred{"precision.compute=fp32", "train.updates=deferred", "train.clip_norm=0.5", "ep.routing_chunk=24"};
const std::vector<std::string> kBfloat16{"precision.compute=bf16", "ep.routing_chunk=24", "ep.receive_rows=50"};

INSTANTIATE_TEST_SUITE_P(Plans, ExpertParallelCuda,
                         ::testing::Values(Case{1, kWhole, 1e-5}, Case{1, kRounds, 1e-5}, Case{2, kWhole, 1e-5}, Case{2, kRounds, 1e-5}, Case{2, kDeferred, 1e-5}, Case{2, kBfloat16, 2e-2},
                                           Case{4, kRounds, 1e-5}, Case{8, kRounds, 1e-5}));

}  // namespace
}  // namespace oom::runtime
