#include "program/cuda_executor.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "mixing_kernel.h"
#include "program/verifier.h"
#include "random_program.h"

namespace oom::program {
namespace {

using ::testing::HasSubstr;

// Pinned host memory that every device can address: host stages and kernels alike reach all buffers.
struct Pinned {
  explicit Pinned(size_t bytes) {
    if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) throw std::bad_alloc();
    std::memset(data, 0, bytes);
  }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  void* data = nullptr;
};

struct Memory {
  explicit Memory(const Program& program) {
    for (const Buffer& buffer : program.buffers) {
      buffers.push_back(std::make_unique<Pinned>(static_cast<size_t>(buffer.bytes)));
      std::memset(buffers.back()->data, 1, static_cast<size_t>(buffer.bytes));
    }
  }
  std::vector<std::unique_ptr<Pinned>> buffers;
};

Mixing mixing_of(const Program& program, StageId id, const Memory& memory) {
  Mixing mixing;
  mixing.seed = static_cast<uint64_t>(id);
  for (const Access& access : program.stages[id].accesses) {
    const BufferId storage = program.buffers[access.buffer].storage;
    OOM_CHECK_LT(mixing.buffer_count, kMostBuffers);
    mixing.buffers[mixing.buffer_count++] = {static_cast<uint64_t*>(memory.buffers[storage]->data),
                                             static_cast<size_t>(program.buffers[storage].bytes) / 8, access.mode != AccessMode::kWrite,
                                             access.mode != AccessMode::kRead};
  }
  return mixing;
}

// Ranks share the devices there are. Many streams on one device, whose kernels wait for each other, need hardware queues of their own.
class CudaExecutor : public ::testing::Test {
 protected:
  // Nor may a kernel be loaded while another one spins: loading waits for the device.
  static void SetUpTestSuite() {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  }
  void SetUp() override {
    if (cudaGetDeviceCount(&devices_) != cudaSuccess || devices_ == 0) GTEST_SKIP() << "no CUDA device";
  }
  CudaExecutorOptions cuda(int ranks) const {
    CudaExecutorOptions options;
    for (int r = 0; r < ranks; ++r) options.devices.push_back(r % devices_);
    return options;
  }
  int devices_ = 0;
};

TEST_F(CudaExecutor, RandomProgramsEqualSequentialExecutionUnderRandomDelays) {
  constexpr int kSteps = 4;
  for (unsigned seed = 0; seed < 30; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 2);
    BuiltProgram built = random_program(seed, {ranks, 1, 8, 60});
    const Program program = built.program;
    require_valid(program);
    Memory expected(program), memory(program);
    for (int step = 0; step < kSteps; ++step) {
      for (size_t id = 0; id < program.stages.size(); ++id) mix_on_host(mixing_of(program, static_cast<StageId>(id), expected), static_cast<uint64_t>(step));
    }
    Pinned counters(std::max<size_t>(1, program.collectives.size() * ranks) * sizeof(unsigned));
    for (size_t id = 0; id < program.stages.size(); ++id) {
      const Mixing mixing = mixing_of(program, static_cast<StageId>(id), memory);
      const CollectiveId collective = program.stages[id].collective;
      Rendezvous rendezvous;
      if (collective != kNone) rendezvous = {static_cast<unsigned*>(counters.data) + static_cast<ptrdiff_t>(collective) * ranks, program.stages[id].lane.index, ranks};
      built.actions[id] = [=](StageContext& context) {
        thread_local std::mt19937 random(seed ^ static_cast<unsigned>(id));
        const auto step = static_cast<uint64_t>(context.step);
        if (context.stream == nullptr) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
          mix_on_host(mixing, step);
        } else {
          mix_on_device(mixing, step, random() % 200'000, rendezvous, static_cast<unsigned>(context.step + 1), context.stream);
        }
      };
    }
    {
      auto executor = make_cuda_executor(std::move(built), {.watchdog = std::chrono::seconds(20)}, cuda(ranks));
      executor->record_times(seed % 2 == 0);
      for (int step = 0; step < kSteps; ++step) executor->run_step(step);
      executor->drain();
    }
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      EXPECT_EQ(std::memcmp(memory.buffers[b]->data, expected.buffers[b]->data, static_cast<size_t>(program.buffers[b].bytes)), 0)
          << "seed " << seed << " " << program.buffers[b].name;
    }
  }
}

TEST_F(CudaExecutor, TimesOfStagesAreOnTheHostsClock) {
  ProgramBuilder builder({0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::numa(0), .bytes = 8});
  builder.emit({.kind = "spin", .lane = {Lane::kCompute, 0}, .writes = {x}, .action = [](StageContext& context) {
                  mix_on_device({}, 0, 20'000'000, {}, 0, context.stream);  // 10 ms at 2 GHz
                }});
  builder.emit({.kind = "read", .lane = {Lane::kIssue, 0}, .reads = {x}, .step_result = true});
  auto executor = make_cuda_executor(std::move(builder).build(), {}, cuda(1));
  executor->run_step(0);
  executor->record_times(true);
  const double before = now_seconds();
  executor->run_step(1);
  executor->drain();
  const double after = now_seconds();
  const auto times = executor->stage_times();
  EXPECT_GT(times[0].seconds(), 0.005);
  EXPECT_GT(times[0].start, before - 1e-3);
  EXPECT_GT(times[1].start, times[0].end - 1e-3);
  EXPECT_LT(times[1].end, after + 1e-3);
}

template <typename Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(CudaExecutor, AFailureNamesItsStageAndFreesTheOtherRank) {
  ProgramBuilder builder({0, 0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "attention_forward", .layer = 3, .lane = {Lane::kCompute, 1}, .writes = {x},
                .action = [](StageContext&) { throw DeviceError("boom"); }});
  builder.emit({.kind = "after", .lane = {Lane::kCompute, 0}, .reads = {x}});
  auto executor = make_cuda_executor(std::move(builder).build(), {}, cuda(2));
  EXPECT_EQ(failure_of([&] { executor->run_step(4); }), "step 4, attention_forward layer 3 rank 1 (compute, stage 0): boom");
}

TEST_F(CudaExecutor, TheWatchdogNamesTheStageThatTheDeviceDoesNotFinish) {
  Pinned counters(2 * sizeof(unsigned));
  auto* arrived = static_cast<unsigned*>(counters.data);
  ProgramBuilder builder({0}, 1);
  const BufferId x = builder.add_buffer({.name = "x", .place = Place::gpu(0), .bytes = 8});
  builder.emit({.kind = "fine", .lane = {Lane::kCompute, 0}});
  builder.emit({.kind = "stuck", .layer = 5, .lane = {Lane::kCompute, 0}, .writes = {x}, .action = [=](StageContext& context) {
                  mix_on_device({}, 0, 0, {arrived, 0, 2}, 1, context.stream);  // waits for a second launch that does not come
                }});
  builder.emit({.kind = "next", .lane = {Lane::kIssue, 0}, .reads = {x}});
  {
    auto executor = make_cuda_executor(std::move(builder).build(), {.watchdog = std::chrono::milliseconds(300)}, cuda(1));
    EXPECT_EQ(failure_of([&] { executor->run_step(0); }),
              "watchdog: nothing finished for 0.3 s; running: step 0, stuck layer 5 rank 0 (compute, stage 1)");
    static_cast<volatile unsigned*>(arrived)[1] = 1;  // lets the kernel end
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(CudaExecutor, CallsThatTheRuntimeRefusesAreToldAsTheStages) {
  ProgramBuilder builder({0}, 1);
  builder.emit({.kind = "copy", .layer = 2, .lane = {Lane::kH2d, 0}, .action = [](StageContext& context) {
                  const auto status = cudaMemcpyAsync(nullptr, nullptr, 16, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(context.stream));
                  if (status != cudaSuccess) throw DeviceError(cat("cudaMemcpyAsync: ", cudaGetErrorName(status)));
                }});
  auto executor = make_cuda_executor(std::move(builder).build(), {}, cuda(1));
  EXPECT_THAT(failure_of([&] { executor->run_step(0); }), HasSubstr("copy layer 2 rank 0 (h2d, stage 0): cudaMemcpyAsync: cudaErrorInvalidValue"));
  cudaGetLastError();
}

}  // namespace
}  // namespace oom::program
