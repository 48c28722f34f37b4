#include "optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <limits>

#include "memory/worker_pool.h"
#include "oom/error.h"
#include "shard_fixture.h"

namespace oom::optim {
namespace {

using ::testing::HasSubstr;

/// AdamW in double precision, as LibTorch's documentation writes it.
struct DoubleAdamW {
  double m, v, w;
  void step(double g, const AdamWStep& s) {
    w -= s.learning_rate * s.weight_decay * w;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(s.beta2, s.step)) + s.eps;
    w -= s.learning_rate / (1 - std::pow(s.beta1, s.step)) * m / denominator;
  }
};

std::vector<uint32_t> bits_of(const AlignedArray<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  for (int64_t i = 0; i < floats.size(); ++i) bits[i] = std::bit_cast<uint32_t>(floats[i]);
  return bits;
}

class AdamW : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (!cpu_supports(GetParam())) GTEST_SKIP() << "this processor has no " << cpu_isa_name(GetParam());
  }
};

TEST_P(AdamW, FollowsTheDoubleReferenceForTenSteps) {
  const int64_t count = 5003;
  Shard shard(count, 1, 11);
  std::vector<DoubleAdamW> reference(count);
  for (int64_t i = 0; i < count; ++i) {
    *shard.state.at(StatePart::kFirstMoment, i) = 0;
    *shard.state.at(StatePart::kSecondMoment, i) = 0;
    reference[i] = {0, 0, *shard.state.at(StatePart::kMaster, i)};
  }
  AdamWJob job = shard.job(ElementType::kFP32);
  job.gradient_scale = 0.5f;
  job.step.weight_decay = 0.1;
  for (int step = 1; step <= 10; ++step) {
    job.step.step = step;
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      shard.fp32[0][i] = std::sin(0.37f * static_cast<float>(i) + static_cast<float>(step)) * 1e-2f;
      const double g = 0.5 * shard.fp32[0][i];
      reference[i].step(g, job.step);
      squares += g * g;
    }
    const GradientStats stats = adamw_update(job, 0, count, GetParam());
    EXPECT_NEAR(stats.sum_of_squares / squares, 1, 1e-12);
  }
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_NEAR(*shard.state.at(StatePart::kMaster, i), reference[i].w, 1e-6 * std::abs(reference[i].w) + 1e-9) << i;
    ASSERT_NEAR(*shard.state.at(StatePart::kFirstMoment, i), reference[i].m, 1e-6 * std::abs(reference[i].m) + 1e-9) << i;
    ASSERT_NEAR(*shard.state.at(StatePart::kSecondMoment, i), reference[i].v, 2e-6 * reference[i].v) << i;
  }
}

TEST_P(AdamW, GivesTheBitsOfThePortableKernelForEveryRangeAndType) {
  const int64_t count = 3 * kBlockParameters + 777;
  const ElementRange ranges[] = {{0, count}, {0, 31}, {5, 6}, {4090, 4200}, {33, 8191}, {4096, 8192}, {12288 + 1, count}};
  for (ElementType gradient : {ElementType::kBF16, ElementType::kFP32})
    for (ElementType published : {ElementType::kBF16, ElementType::kFP32})
      for (int partials : {1, 3})
        for (const ElementRange& range : ranges) {
          Shard here(count, partials, 5), portable(count, partials, 5);
          AdamWJob job = here.job(gradient, published), same = portable.job(gradient, published);
          job.gradient_scale = same.gradient_scale = 0.7f;
          const double sum = adamw_update(job, range.begin, range.end, GetParam()).sum_of_squares;
          const double expected = adamw_update(same, range.begin, range.end, CpuIsa::kPortable).sum_of_squares;
          ASSERT_EQ(sum, expected);
          ASSERT_EQ(gradient_stats(job.gradients, 0.7f, range.begin, range.end, GetParam()).sum_of_squares, expected);
          ASSERT_EQ(bits_of(here.memory), bits_of(portable.memory)) << range.begin << " to " << range.end;
          ASSERT_EQ(here.published_bf16.copy(), portable.published_bf16.copy());
          ASSERT_EQ(bits_of(here.published_fp32), bits_of(portable.published_fp32));
        }
}

TEST_P(AdamW, ChangesNothingOutsideTheRange) {
  const int64_t count = 2 * kBlockParameters, begin = 100, end = 4500;
  Shard before(count, 2, 9), after(count, 2, 9);
  adamw_update(after.job(), begin, end, GetParam());
  for (int64_t i = 0; i < count; ++i) {
    const bool inside = i >= begin && i < end;
    for (StatePart part : {StatePart::kFirstMoment, StatePart::kSecondMoment, StatePart::kMaster})
      ASSERT_EQ(*before.state.at(part, i) != *after.state.at(part, i), inside) << i << " part " << static_cast<int>(part);
    ASSERT_EQ(after.published_bf16[i] != 0x7fc1, inside) << i;
  }
}

TEST_P(AdamW, PublishesTheRoundedMasterToUnalignedTargetsToo) {
  const int64_t count = 5000;
  Shard shard(count, 1, 21);
  AlignedArray<uint16_t> shifted(count + 3);
  AdamWJob job = shard.job();
  job.publish.data = shifted.data() + 3;
  adamw_update(job, 0, count, GetParam());
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(shifted[i + 3], bf16_from_float(*shard.state.at(StatePart::kMaster, i))) << i;
}

TEST_P(AdamW, PublishesEveryKindOfNumberAsBf16FromFloatDoes) {
  const int64_t count = 2 * kBlockParameters;
  Shard shard(count, 1, 1);
  std::mt19937 random(17);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = random();
    if (i % 4 == 1) bits = (bits & 0xffff0000u) | 0x8000u;   // ties
    if (i % 16 == 2) bits |= 0x7f800000u;                    // infinities and NaN
    if (i % 64 == 2) bits &= 0xff800000u;                    // infinities
    if (i % 16 == 3) bits &= 0x807fffffu;                    // zeros and denormals
    if (i % 16 == 7) bits = (bits & 0x80000000u) | 0x7f7fffffu;  // rounds to infinity
    *shard.state.at(StatePart::kMaster, i) = std::bit_cast<float>(bits);
  }
  publish_weights(shard.state, 3, count, shard.publish(ElementType::kBF16), GetParam());
  publish_weights(shard.state, 3, count, shard.publish(ElementType::kFP32), GetParam());
  ASSERT_EQ(shard.published_bf16[2], 0x7fc1);
  for (int64_t i = 3; i < count; ++i) {
    const float master = *shard.state.at(StatePart::kMaster, i);
    ASSERT_EQ(shard.published_bf16[i], bf16_from_float(master)) << std::hex << std::bit_cast<uint32_t>(master);
    ASSERT_EQ(std::bit_cast<uint32_t>(shard.published_fp32[i]), std::bit_cast<uint32_t>(master));
  }
}

TEST_P(AdamW, DecaysWithoutGradientAndNotInExceptedRanges) {
  const int64_t count = kBlockParameters + 500;
  Shard shard(count, 1, 2), before(count, 1, 2);
  std::fill_n(shard.bf16[0].data(), count, 0);
  shard.state.fill(StatePart::kFirstMoment, 0, count, 0.0f);
  shard.state.fill(StatePart::kSecondMoment, 0, count, 0.0f);
  AdamWJob job = shard.job();
  job.step.learning_rate = 0.5;
  job.step.weight_decay = 0.5;
  const ElementRange excepted[] = {{10, 20}, {4000, 4200}, {4300, 4301}};
  job.without_decay = excepted;
  adamw_update(job, 0, 15, GetParam());
  adamw_update(job, 15, count, GetParam());
  for (int64_t i = 0; i < count; ++i) {
    const bool kept = (i >= 10 && i < 20) || (i >= 4000 && i < 4200) || i == 4300;
    ASSERT_EQ(*shard.state.at(StatePart::kMaster, i), *before.state.at(StatePart::kMaster, i) * (kept ? 1.0f : 0.75f)) << i;
  }
}

TEST_P(AdamW, ExceptedRangesEqualAJobWithoutDecay) {
  const int64_t count = 2 * kBlockParameters;
  Shard excepted(count, 2, 3), without(count, 2, 3);
  const ElementRange everything[] = {{0, 5000}, {5000, count}};
  AdamWJob job = excepted.job(), plain = without.job();
  job.without_decay = everything;
  plain.step.weight_decay = 0;
  EXPECT_EQ(adamw_update(job, 0, count, GetParam()).sum_of_squares, adamw_update(plain, 0, count, GetParam()).sum_of_squares);
  EXPECT_EQ(bits_of(excepted.memory), bits_of(without.memory));
}

TEST_P(AdamW, SumsPartialsInRankOrderBeforeScaling) {
  Shard shard(64, 3, 4);
  for (int64_t i = 0; i < 64; ++i) {
    shard.fp32[0][i] = 1e8f;
    shard.fp32[1][i] = -1e8f;
    shard.fp32[2][i] = 0.25f;  // lost if it were added to either of the others first
    *shard.state.at(StatePart::kFirstMoment, i) = 0;
  }
  AdamWJob job = shard.job(ElementType::kFP32);
  job.gradient_scale = 2.0f;
  EXPECT_EQ(adamw_update(job, 0, 64, GetParam()).sum_of_squares, 64 * 0.25);
  EXPECT_FLOAT_EQ(*shard.state.at(StatePart::kFirstMoment, 7), 0.05f);
}

TEST_P(AdamW, StaysExactAtAMillionSteps) {
  Shard shard(128, 1, 6);
  AdamWJob job = shard.job(ElementType::kFP32);
  job.step.step = 1'000'000;
  DoubleAdamW reference{*shard.state.at(StatePart::kFirstMoment, 50), *shard.state.at(StatePart::kSecondMoment, 50),
                        *shard.state.at(StatePart::kMaster, 50)};
  reference.step(shard.fp32[0][50], job.step);
  adamw_update(job, 0, 128, GetParam());
  EXPECT_NEAR(*shard.state.at(StatePart::kMaster, 50), reference.w, 1e-7 * std::abs(reference.w) + 1e-9);
}

TEST_P(AdamW, ReportsWhatIsNotFinite) {
  const int64_t count = 9000;
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (int64_t position : {int64_t{0}, int64_t{4100}, count - 1})
      for (ElementType type : {ElementType::kBF16, ElementType::kFP32}) {
        Shard shard(count, 2, 8);
        shard.fp32[1][position] = bad;
        shard.bf16[1][position] = bf16_from_float(bad);
        EXPECT_FALSE(gradient_stats(shard.gradients(type), 1.0f, 0, count, GetParam()).finite());
        EXPECT_FALSE(adamw_update(shard.job(type), 0, count, GetParam()).finite());
      }
  Shard large(count, 1, 8);
  std::fill_n(large.fp32[0].data(), count, 3e38f);  // its square is no float, but it is finite
  EXPECT_TRUE(gradient_stats(large.gradients(ElementType::kFP32), 1.0f, 0, count, GetParam()).finite());
  EXPECT_FALSE(gradient_stats(large.gradients(ElementType::kFP32), 2.0f, 0, count, GetParam()).finite());
}

TEST_P(AdamW, TreatsDenormalsAsZeroAndRestoresTheControlWord) {
  const float denormal = std::bit_cast<float>(0x00012345u);
  Shard shard(100, 1, 12);
  shard.state.fill(StatePart::kSecondMoment, 0, 100, denormal);
  shard.state.fill(StatePart::kMaster, 0, 100, -denormal);
  shard.state.fill(StatePart::kFirstMoment, 0, 100, denormal);
  std::fill_n(shard.fp32[0].data(), 100, denormal);
  const unsigned before = _mm_getcsr() & 0x8040;
  adamw_update(shard.job(ElementType::kFP32), 0, 100, GetParam());
  EXPECT_EQ(_mm_getcsr() & 0x8040, before);
  for (int64_t i = 0; i < 100; ++i)
    for (StatePart part : {StatePart::kFirstMoment, StatePart::kSecondMoment, StatePart::kMaster})
      ASSERT_EQ(std::bit_cast<uint32_t>(*shard.state.at(part, i)) & 0x7fffffffu, 0u) << i << " part " << static_cast<int>(part);
}

TEST_P(AdamW, GivesTheSameBitsAndSumOnAnyNumberOfThreads) {
  const int64_t count = 5 * kWorkItemParameters + 1234, begin = 77;
  Shard serial(count, 2, 13);
  const double expected = adamw_update(serial.job(), begin, count, GetParam()).sum_of_squares;
  for (int threads : {1, 2, 5}) {
    memory::WorkerPool pool("test", threads);
    Shard parallel(count, 2, 13);
    EXPECT_EQ(adamw_update_parallel(pool, parallel.job(), begin, count, GetParam()).sum_of_squares, expected);
    EXPECT_EQ(bits_of(parallel.memory), bits_of(serial.memory)) << threads;
    EXPECT_EQ(parallel.published_bf16.copy(), serial.published_bf16.copy()) << threads;
    std::fill_n(parallel.published_bf16.data(), count, uint16_t{0x7fc1});
    publish_weights_parallel(pool, parallel.state, begin, count, parallel.publish(ElementType::kBF16), GetParam());
    EXPECT_EQ(parallel.published_bf16.copy(), serial.published_bf16.copy()) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, AdamW, ::testing::ValuesIn(kEveryCpuIsa),
                         [](const auto& info) { return std::string(cpu_isa_name(info.param)); });

TEST(AdamWConstants, AreRoundedOnceFromDouble) {
  AdamWStep step;
  step.learning_rate = 1e-3;
  step.weight_decay = 0.1;
  const AdamWConstants first = adamw_constants(step);
  EXPECT_EQ(first.rate, static_cast<float>(-1e-3 / (1.0 - 0.9)));
  EXPECT_EQ(first.decay, static_cast<float>(-1e-4));
  EXPECT_EQ(first.one_minus_beta2, static_cast<float>(1.0 - 0.999));
  step.step = 1'000'000;
  EXPECT_EQ(adamw_constants(step).rate, -1e-3f);
  EXPECT_EQ(adamw_constants(step).inverse_root_correction2, 1.0f);
  step.step = 0;
  EXPECT_THROW(adamw_constants(step), Error);
}

TEST(AdamWRanges, OutsideTheShardAreRefused) {
  Shard shard(100, 1, 1);
  try {
    adamw_update(shard.job(), 50, 101);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("elements 50 to 101 of a shard of 100"));
  }
  AdamWJob job = shard.job();
  job.gradients.partials = {};
  EXPECT_THROW(adamw_update(job, 0, 100), Error);
}

TEST(AdamWRanges, MayBeEmpty) {
  Shard shard(100, 1, 1), untouched(100, 1, 1);
  memory::WorkerPool pool("test", 2);
  EXPECT_EQ(adamw_update(shard.job(), 60, 60).sum_of_squares, 0);
  EXPECT_EQ(adamw_update_parallel(pool, shard.job(), 60, 60).sum_of_squares, 0);
  EXPECT_EQ(bits_of(shard.memory), bits_of(untouched.memory));
}

}  // namespace
}  // namespace oom::optim
