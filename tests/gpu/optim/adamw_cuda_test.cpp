#include "optim/adamw_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "shard_fixture.h"
#include "oom/error.h"

namespace oom::optim {
namespace {

void check(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

/// A copy of a host array on the device.
template <typename Element>
class DeviceArray {
 public:
  DeviceArray(const Element* host, int64_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<int64_t>(1, count) * sizeof(Element)));
    if (host != nullptr) check(cudaMemcpy(data_, host, count * sizeof(Element), cudaMemcpyHostToDevice));
  }
  explicit DeviceArray(const AlignedArray<Element>& host) : DeviceArray(host.data(), host.size()) {}
  DeviceArray(DeviceArray&& other) noexcept : count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceArray() { cudaFree(data_); }
  Element* data() const { return static_cast<Element*>(data_); }
  std::vector<Element> copy() const {
    std::vector<Element> host(count_);
    check(cudaMemcpy(host.data(), data_, count_ * sizeof(Element), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  int64_t count_;
  void* data_ = nullptr;
};

template <typename Floats>
std::vector<uint32_t> bits_of(const Floats& floats) {
  std::vector<uint32_t> bits;
  for (float value : floats) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

/// A shard on the device with everything an update needs.
struct DeviceShard {
  explicit DeviceShard(const Shard& shard)
      : memory(shard.memory), published_bf16(shard.published_bf16), published_fp32(shard.published_fp32),
        sums(nullptr, 4096), stats(nullptr, 1), count(shard.state.count()) {
    for (const auto& partial : shard.fp32) fp32.emplace_back(partial);
    for (const auto& partial : shard.bf16) bf16.emplace_back(partial);
    for (const auto& partial : fp32) fp32_partials.push_back(partial.data());
    for (const auto& partial : bf16) bf16_partials.push_back(partial.data());
  }
  Gradients gradients(ElementType type) const { return {type, type == ElementType::kBF16 ? bf16_partials : fp32_partials}; }
  AdamWDeviceJob job(const AdamWJob& host) const {
    AdamWDeviceJob job;
    job.state = StateBlocks(memory.data(), count);
    job.gradients = gradients(host.gradients.type);
    job.gradient_scale = host.gradient_scale;
    job.step = host.step;
    job.without_decay = host.without_decay;
    job.publish = {host.publish.type, host.publish.type == ElementType::kBF16 ? static_cast<void*>(published_bf16.data()) : published_fp32.data()};
    job.partial_sums = sums.data();
    job.stats = stats.data();
    return job;
  }

  DeviceArray<float> memory;
  std::vector<DeviceArray<float>> fp32;
  std::vector<DeviceArray<uint16_t>> bf16;
  std::vector<const void*> fp32_partials, bf16_partials;
  DeviceArray<uint16_t> published_bf16;
  DeviceArray<float> published_fp32;
  DeviceArray<double> sums;
  DeviceArray<DeviceGradientStats> stats;
  int64_t count;
};

class AdamWCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
  }
};

TEST_F(AdamWCuda, GivesTheHostsBitsForEveryRangeAndType) {
  const int64_t count = 3 * kBlockParameters + 777;
  const ElementRange excepted[] = {{100, 103}, {4000, 4300}};
  const ElementRange ranges[] = {{0, count}, {0, 31}, {5, 6}, {4090, 4200}, {33, 8191}, {4096, 8192}, {12289, count}, {9, 9}};
  for (ElementType gradient : {ElementType::kBF16, ElementType::kFP32})
    for (ElementType published : {ElementType::kBF16, ElementType::kFP32})
      for (int partials : {1, 3})
        for (const ElementRange& range : ranges) {
          const Shard host(count, partials, 5);
          const DeviceShard device(host);
          AdamWJob job = host.job(gradient, published);
          job.gradient_scale = 0.7f;
          job.without_decay = excepted;
          adamw_update_cuda(device.job(job), range.begin, range.end, nullptr);
          const double expected = adamw_update(job, range.begin, range.end).sum_of_squares;
          const DeviceGradientStats stats = device.stats.copy()[0];
          ASSERT_EQ(bits_of(device.memory.copy()), bits_of(host.memory.copy())) << range.begin << " to " << range.end;
          ASSERT_EQ(device.published_bf16.copy(), host.published_bf16.copy());
          ASSERT_EQ(bits_of(device.published_fp32.copy()), bits_of(host.published_fp32.copy()));
          ASSERT_NEAR(stats.sum_of_squares, expected, 1e-13 * expected);
          ASSERT_EQ(stats.finite, 1);
        }
}

TEST_F(AdamWCuda, StaysWithTheHostForTenSteps) {
  const int64_t count = 50000;
  const Shard host(count, 2, 31);
  const DeviceShard device(host);
  AdamWJob job = host.job();
  for (int step = 1; step <= 10; ++step) {
    job.step.step = step;
    adamw_update(job, 0, count);
    adamw_update_cuda(device.job(job), 0, count, nullptr);
  }
  EXPECT_EQ(device.published_bf16.copy(), host.published_bf16.copy());
  EXPECT_EQ(bits_of(device.memory.copy()), bits_of(host.memory.copy()));
}

TEST_F(AdamWCuda, FlushesDenormalsAsTheHostDoes) {
  const float denormal = std::bit_cast<float>(0x00012345u);
  const Shard host(5000, 1, 12);
  host.state.fill(StatePart::kSecondMoment, 0, 2500, denormal);
  host.state.fill(StatePart::kMaster, 0, 2500, -denormal);
  host.state.fill(StatePart::kFirstMoment, 0, 2500, denormal);
  std::fill_n(host.fp32[0].data(), 2500, denormal);
  const DeviceShard device(host);
  const AdamWJob job = host.job(ElementType::kFP32);
  adamw_update(job, 0, 5000);
  adamw_update_cuda(device.job(job), 0, 5000, nullptr);
  EXPECT_EQ(bits_of(device.memory.copy()), bits_of(host.memory.copy()));
}

TEST_F(AdamWCuda, ReadsTheClippingScaleOnTheDevice) {
  const Shard host(5000, 1, 14);
  const DeviceShard device(host);
  const float scale = 0.25f;
  const DeviceArray<float> device_scale(&scale, 1);
  AdamWJob job = host.job();
  job.gradient_scale = 0.5f;
  AdamWDeviceJob device_job = device.job(job);
  device_job.device_gradient_scale = device_scale.data();
  adamw_update_cuda(device_job, 0, 5000, nullptr);
  job.gradient_scale = 0.125f;
  adamw_update(job, 0, 5000);
  EXPECT_EQ(bits_of(device.memory.copy()), bits_of(host.memory.copy()));
}

// The host hears of a norm later than the kernel needs it.
TEST_F(AdamWCuda, ANormThatIsNotFiniteLeavesStateAndWeightsAsTheyWere) {
  constexpr int64_t kCount = 5000;
  for (const double norm : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 3.5}) {
    const Shard host(kCount, 2, 8);
    const DeviceShard device(host);
    const std::vector<float> before = device.memory.copy();
    const std::vector<uint16_t> published = device.published_bf16.copy();
    const DeviceArray<double> sum_of_squares(&norm, 1);
    AdamWDeviceJob job = device.job(host.job());
    job.partial_sums = nullptr;
    job.stats = nullptr;
    job.gradient_sum_of_squares = sum_of_squares.data();
    adamw_update_cuda(job, 0, kCount, nullptr);
    const bool untouched = bits_of(device.memory.copy()) == bits_of(before) && device.published_bf16.copy() == published;
    EXPECT_EQ(untouched, !std::isfinite(norm)) << norm;
  }
}

TEST_F(AdamWCuda, PublishesFromMasters) {
  const Shard host(9999, 1, 15);
  for (float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0x3f808000u),
                        std::bit_cast<float>(0x00012345u)})
    host.state.fill(StatePart::kMaster, 5000, 5008, special);
  const DeviceShard device(host);
  for (ElementType type : {ElementType::kBF16, ElementType::kFP32}) {
    publish_weights(host.state, 13, 9999, host.publish(type));
    publish_weights_cuda(StateBlocks(device.memory.data(), 9999), 13, 9999, device.job(host.job(ElementType::kBF16, type)).publish, nullptr);
  }
  EXPECT_EQ(device.published_bf16.copy(), host.published_bf16.copy());
  EXPECT_EQ(bits_of(device.published_fp32.copy()), bits_of(host.published_fp32.copy()));
}

TEST_F(AdamWCuda, SumsPartialsInOrderAndRoundsOnce) {
  const int64_t count = 70001;
  const Shard host(count, 3, 16);
  const DeviceShard device(host);
  for (ElementType in : {ElementType::kBF16, ElementType::kFP32}) {
    sum_partials_cuda(device.gradients(in), count, ElementType::kFP32, device.published_fp32.data(), device.sums.data(), device.stats.data(), nullptr);
    sum_partials_cuda(device.gradients(in), count, ElementType::kBF16, device.published_bf16.data(), nullptr, nullptr, nullptr);
    const auto fp32 = device.published_fp32.copy();
    const auto bf16 = device.published_bf16.copy();
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int p = 0; p < 3; ++p) sum += in == ElementType::kBF16 ? float_from_bf16(host.bf16[p][i]) : host.fp32[p][i];
      ASSERT_EQ(fp32[i], sum) << i;
      ASSERT_EQ(bf16[i], bf16_from_float(sum)) << i;
    }
    const double expected = gradient_stats(host.gradients(in), 1.0f, 0, count).sum_of_squares;
    EXPECT_NEAR(device.stats.copy()[0].sum_of_squares, expected, 1e-13 * expected);
  }
}

TEST_F(AdamWCuda, NormsAreRepeatableAndSeeWhatIsNotFinite) {
  const int64_t count = 300001;
  for (ElementType type : {ElementType::kBF16, ElementType::kFP32}) {
    const Shard host(count, 1, 17);
    const DeviceShard device(host);
    const void* data = device.gradients(type).partials[0];
    double first = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
      sum_of_squares_cuda(type, data, count, 0.5f, device.sums.data(), device.stats.data(), nullptr);
      const double sum = device.stats.copy()[0].sum_of_squares;
      if (repeat == 0) first = sum;
      EXPECT_EQ(sum, first);
    }
    const double expected = gradient_stats(host.gradients(type), 0.5f, 0, count).sum_of_squares;
    EXPECT_NEAR(first, expected, 1e-13 * expected);
  }
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Shard host(count, 1, 17);
    host.fp32[0][count - 1] = bad;
    const DeviceShard device(host);
    sum_of_squares_cuda(ElementType::kFP32, device.fp32[0].data(), count, 1.0f, device.sums.data(), device.stats.data(), nullptr);
    EXPECT_EQ(device.stats.copy()[0].finite, 0);
  }
}

TEST_F(AdamWCuda, CombinesStatsInOrder) {
  const DeviceGradientStats parts[] = {{1.5, 1}, {2.5, 1}, {4.0, 1}};
  const DeviceArray<DeviceGradientStats> device(parts, 3), out(nullptr, 1);
  combine_stats_cuda(device.data(), 3, out.data(), nullptr);
  EXPECT_EQ(out.copy()[0].sum_of_squares, 8.0);
  EXPECT_EQ(out.copy()[0].finite, 1);
}

}  // namespace
}  // namespace oom::optim
