// State in GPU memory as checkpoints and loading reach it: through registered staging, from several threads, at every offset.
#include "runtime/device_state.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "base/bfloat16.h"
#include "memory/host_mapping.h"

namespace oom::runtime {
namespace {

// More than a piece of staging, and no whole number of blocks.
constexpr int64_t kCount = (int64_t{5} << 20) / 4 + 777;

float value_of(optim::StatePart part, int64_t i) { return static_cast<float>(i % 9973) + 0.25f * static_cast<float>(static_cast<int>(part)); }

class DeviceStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
    device_ = DeviceRuntime::make(DeviceKind::kCuda, 1, 1);
    transfer_ = comm::DeviceTransfer::make(DeviceKind::kCuda);
    std::byte* arena = device_->allocate(0, optim::state_bytes(kCount) + 4 * kCount);
    blocks_ = optim::StateBlocks(reinterpret_cast<float*>(arena), kCount);
    weights_ = arena + optim::state_bytes(kCount);
    staging_.emplace(DeviceState::kStagingBytes, -1, "staging");
    device_->registry()->register_range(staging_->data(), DeviceState::kStagingBytes, {});
    state_ = std::make_unique<DeviceState>(*device_, *transfer_, std::vector<std::byte*>{staging_->data()});
  }
  void TearDown() override {
    if (state_) device_->registry()->unregister_range(staging_->data());
  }
  void fill() {
    for (const optim::StatePart part : {optim::StatePart::kFirstMoment, optim::StatePart::kSecondMoment, optim::StatePart::kMaster}) {
      std::vector<float> values(kCount);
      for (int64_t i = 0; i < kCount; ++i) values[i] = value_of(part, i);
      state_->write(0, blocks_, part, 0, values);
    }
  }

  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<comm::DeviceTransfer> transfer_;
  std::optional<memory::HostMapping> staging_;
  std::unique_ptr<DeviceState> state_;
  optim::StateBlocks blocks_;
  std::byte* weights_ = nullptr;
};

TEST_F(DeviceStateTest, ReadsWhatWasWrittenAtEveryOffset) {
  fill();
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{70001}}) {
    for (const int64_t count : {int64_t{1}, int64_t{4096}, int64_t{9000}, kCount - 70001}) {
      std::vector<float> values(static_cast<size_t>(count));
      state_->read(0, blocks_, optim::StatePart::kSecondMoment, begin, values);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values[i], value_of(optim::StatePart::kSecondMoment, begin + i)) << begin << " + " << i;
    }
  }
}

TEST_F(DeviceStateTest, ServesMoreThreadsThanItHasStaging) {
  fill();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 9; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t begin = 1000 * t; begin + 50000 < kCount; begin += 50000) {
        std::vector<float> values(50000);
        state_->read(0, blocks_, optim::StatePart::kMaster, begin, values);
        for (int64_t i = 0; i < 50000; ++i) wrong += values[i] != value_of(optim::StatePart::kMaster, begin + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(DeviceStateTest, PublishesMastersAndClears) {
  fill();
  state_->publish(0, blocks_, {optim::ElementType::kBF16, weights_});
  std::vector<uint16_t> published(kCount);
  ASSERT_EQ(cudaMemcpy(published.data(), weights_, kCount * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(published[i], base::to_bfloat16(value_of(optim::StatePart::kMaster, i))) << i;
  state_->clear(0, blocks_);
  std::vector<float> values(kCount);
  state_->read(0, blocks_, optim::StatePart::kMaster, 0, values);
  for (const float value : values) ASSERT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace oom::runtime
