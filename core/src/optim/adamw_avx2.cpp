#include <immintrin.h>

#include <algorithm>

#include "optim/adamw_kernels.h"

#define OOM_AVX2 __attribute__((target("avx2,fma")))
#define OOM_INLINE __attribute__((always_inline)) inline

namespace oom::optim {
namespace {

constexpr int kVector = 16;             // elements of one turn: all lanes once
constexpr int kPrefetchElements = 512;  // 2 KiB ahead in each of m, v and w

struct Lanes {
  __m256d part[4];
};

OOM_AVX2 OOM_INLINE Lanes load_lanes(const double* lanes) {
  return {{_mm256_loadu_pd(lanes), _mm256_loadu_pd(lanes + 4), _mm256_loadu_pd(lanes + 8), _mm256_loadu_pd(lanes + 12)}};
}

OOM_AVX2 OOM_INLINE void store_lanes(const Lanes& sums, double* lanes) {
  for (int k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums.part[k]);
}

OOM_AVX2 OOM_INLINE void add_squares(__m256d* sums, __m256 g) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(g));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(g, 1));
  // The product of two floats is exact in double: fused or not, the sum is the same.
  sums[0] = _mm256_fmadd_pd(low, low, sums[0]);
  sums[1] = _mm256_fmadd_pd(high, high, sums[1]);
}

template <ElementType kGradient>
OOM_AVX2 OOM_INLINE __m256 load_gradient(const void* partial, int64_t index) {
  if constexpr (kGradient == ElementType::kBF16) {
    const auto* address = static_cast<const uint16_t*>(partial) + index;
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(address));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  } else {
    return _mm256_loadu_ps(static_cast<const float*>(partial) + index);
  }
}

template <ElementType kGradient>
OOM_AVX2 OOM_INLINE __m256 load_scaled_gradient(const Run& run, int64_t index, __m256 scale) {
  __m256 sum = load_gradient<kGradient>(run.partials[0], index);
  for (int partial = 1; partial < run.partial_count; ++partial)
    sum = _mm256_add_ps(sum, load_gradient<kGradient>(run.partials[partial], index));
  return _mm256_mul_ps(sum, scale);
}

struct Constants {
  __m256 scale, decay, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2, eps, rate;
};

OOM_AVX2 OOM_INLINE Constants broadcast(const AdamWConstants& c, float scale) {
  return {_mm256_set1_ps(scale),   _mm256_set1_ps(c.decay),           _mm256_set1_ps(c.one_minus_beta1),
          _mm256_set1_ps(c.beta2), _mm256_set1_ps(c.one_minus_beta2), _mm256_set1_ps(c.inverse_root_correction2),
          _mm256_set1_ps(c.eps),   _mm256_set1_ps(c.rate)};
}

OOM_AVX2 OOM_INLINE void update_8(const Run& run, const Constants& c, int i, __m256 g) {
  const __m256 m0 = _mm256_loadu_ps(run.m + i), v0 = _mm256_loadu_ps(run.v + i), w0 = _mm256_loadu_ps(run.w + i);
  const __m256 w = _mm256_fmadd_ps(c.decay, w0, w0);
  const __m256 m = _mm256_fmadd_ps(c.one_minus_beta1, _mm256_sub_ps(g, m0), m0);
  const __m256 v = _mm256_fmadd_ps(_mm256_mul_ps(c.one_minus_beta2, g), g, _mm256_mul_ps(c.beta2, v0));
  const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(v), c.inverse_root_correction2, c.eps);
  _mm256_storeu_ps(run.m + i, m);
  _mm256_storeu_ps(run.v + i, v);
  _mm256_storeu_ps(run.w + i, _mm256_fmadd_ps(c.rate, _mm256_div_ps(m, d), w));
}

OOM_AVX2 OOM_INLINE void prefetch_state(const Run& run, int i) {
  // Past the end of this block's arrays the stream goes on in the next block.
  const int64_t ahead = i + kPrefetchElements + (i + kPrefetchElements < kBlockParameters ? 0 : kBlockFloats - kBlockParameters);
  for (const float* array : {run.m, run.v, run.w}) _mm_prefetch(reinterpret_cast<const char*>(array + ahead), _MM_HINT_T0);
}

int whole_vectors_begin(const Run& run) { return std::min(run.end, (run.begin + kVector - 1) / kVector * kVector); }

template <ElementType kGradient>
OOM_AVX2 void update(const Run& run, const AdamWConstants& constants, double* lanes) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) update_element<kGradient>(run, constants, i, lanes);
  const Constants c = broadcast(constants, run.gradient_scale);
  Lanes sums = load_lanes(lanes);
  for (; i + kVector <= run.end; i += kVector) {
    prefetch_state(run, i);
    for (int half = 0; half < 2; ++half) {
      const __m256 g = load_scaled_gradient<kGradient>(run, run.shard_offset + i + 8 * half, c.scale);
      add_squares(sums.part + 2 * half, g);
      update_8(run, c, i + 8 * half, g);
    }
  }
  store_lanes(sums, lanes);
  for (; i < run.end; ++i) update_element<kGradient>(run, constants, i, lanes);
}

template <ElementType kGradient>
OOM_AVX2 void stats(const Run& run, double* lanes) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) stats_element<kGradient>(run, i, lanes);
  const __m256 scale = _mm256_set1_ps(run.gradient_scale);
  Lanes sums = load_lanes(lanes);
  for (; i + kVector <= run.end; i += kVector) {
    add_squares(sums.part, load_scaled_gradient<kGradient>(run, run.shard_offset + i, scale));
    add_squares(sums.part + 2, load_scaled_gradient<kGradient>(run, run.shard_offset + i + 8, scale));
  }
  store_lanes(sums, lanes);
  for (; i < run.end; ++i) stats_element<kGradient>(run, i, lanes);
}

OOM_AVX2 OOM_INLINE void store_half_line(void* address, __m256i half_line, bool past_caches) {
  if (past_caches)
    _mm256_stream_si256(static_cast<__m256i*>(address), half_line);
  else
    _mm256_storeu_si256(static_cast<__m256i*>(address), half_line);
}

bool line_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 64 == 0; }

// bf16_from_float on 8 lanes; results in the low halves of 32-bit lanes.
OOM_AVX2 OOM_INLINE __m256i round_8(__m256 weights) {
  const __m256i bits = _mm256_castps_si256(weights);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i denormal = _mm256_cmpeq_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)), _mm256_setzero_si256());
  const __m256i flushed = _mm256_blendv_epi8(rounded, _mm256_and_si256(upper, _mm256_set1_epi32(0x8000)), denormal);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(weights, weights, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(flushed, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
}

OOM_AVX2 void publish_bf16(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) {
    const __m256i packed = _mm256_packus_epi32(round_8(_mm256_loadu_ps(run.w + i)), round_8(_mm256_loadu_ps(run.w + i + 8)));
    store_half_line(out + i, _mm256_permute4x64_epi64(packed, 0xd8), past_caches);
  }
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

OOM_AVX2 void publish_fp32(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kFP32>(run, i);
  float* out = static_cast<float*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) {
    store_half_line(out + i, _mm256_castps_si256(_mm256_loadu_ps(run.w + i)), past_caches);
    store_half_line(out + i + 8, _mm256_castps_si256(_mm256_loadu_ps(run.w + i + 8)), past_caches);
  }
  for (; i < run.end; ++i) publish_element<ElementType::kFP32>(run, i);
}

}  // namespace

const KernelSet kAvx2Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                             {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                             {publish_bf16, publish_fp32}};

}  // namespace oom::optim
