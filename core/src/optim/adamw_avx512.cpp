// Two sets: rounding by vcvtne2ps2bf16, and by integer operations for processors without it.
#include <immintrin.h>

#include <algorithm>

#include "optim/adamw_kernels.h"

#define OOM_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define OOM_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define OOM_INLINE __attribute__((always_inline)) inline

namespace oom::optim {
namespace {

constexpr int kVector = 32;             // elements of one turn: a full line of BF16
constexpr int kPrefetchElements = 512;  // 2 KiB ahead in each of m, v and w

struct Lanes {
  __m512d low, high;
};

OOM_AVX512 OOM_INLINE Lanes load_lanes(const double* lanes) { return {_mm512_loadu_pd(lanes), _mm512_loadu_pd(lanes + 8)}; }

OOM_AVX512 OOM_INLINE void store_lanes(const Lanes& sums, double* lanes) {
  _mm512_storeu_pd(lanes, sums.low);
  _mm512_storeu_pd(lanes + 8, sums.high);
}

OOM_AVX512 OOM_INLINE void add_squares(Lanes& sums, __m512 g) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(g));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(g, 1));
  // The product of two floats is exact in double: fused or not, the sum is the same.
  sums.low = _mm512_fmadd_pd(low, low, sums.low);
  sums.high = _mm512_fmadd_pd(high, high, sums.high);
}

template <ElementType kGradient>
OOM_AVX512 OOM_INLINE __m512 load_gradient(const void* partial, int64_t index) {
  if constexpr (kGradient == ElementType::kBF16) {
    const auto* address = static_cast<const uint16_t*>(partial) + index;
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  } else {
    return _mm512_loadu_ps(static_cast<const float*>(partial) + index);
  }
}

template <ElementType kGradient>
OOM_AVX512 OOM_INLINE __m512 load_scaled_gradient(const Run& run, int64_t index, __m512 scale) {
  __m512 sum = load_gradient<kGradient>(run.partials[0], index);
  for (int partial = 1; partial < run.partial_count; ++partial)
    sum = _mm512_add_ps(sum, load_gradient<kGradient>(run.partials[partial], index));
  return _mm512_mul_ps(sum, scale);
}

struct Constants {
  __m512 scale, decay, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2, eps, rate;
};

OOM_AVX512 OOM_INLINE Constants broadcast(const AdamWConstants& c, float scale) {
  return {_mm512_set1_ps(scale),   _mm512_set1_ps(c.decay),           _mm512_set1_ps(c.one_minus_beta1),
          _mm512_set1_ps(c.beta2), _mm512_set1_ps(c.one_minus_beta2), _mm512_set1_ps(c.inverse_root_correction2),
          _mm512_set1_ps(c.eps),   _mm512_set1_ps(c.rate)};
}

OOM_AVX512 OOM_INLINE void update_16(const Run& run, const Constants& c, int i, __m512 g) {
  const __m512 m0 = _mm512_loadu_ps(run.m + i), v0 = _mm512_loadu_ps(run.v + i), w0 = _mm512_loadu_ps(run.w + i);
  const __m512 w = _mm512_fmadd_ps(c.decay, w0, w0);
  const __m512 m = _mm512_fmadd_ps(c.one_minus_beta1, _mm512_sub_ps(g, m0), m0);
  const __m512 v = _mm512_fmadd_ps(_mm512_mul_ps(c.one_minus_beta2, g), g, _mm512_mul_ps(c.beta2, v0));
  const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(v), c.inverse_root_correction2, c.eps);
  _mm512_storeu_ps(run.m + i, m);
  _mm512_storeu_ps(run.v + i, v);
  _mm512_storeu_ps(run.w + i, _mm512_fmadd_ps(c.rate, _mm512_div_ps(m, d), w));
}

OOM_AVX512 OOM_INLINE void prefetch_state(const Run& run, int i) {
  // Past the end of this block's arrays the stream goes on in the next block.
  const int64_t ahead = i + kPrefetchElements + (i + kPrefetchElements < kBlockParameters ? 0 : kBlockFloats - kBlockParameters);
  for (const float* array : {run.m, run.v, run.w}) {
    _mm_prefetch(reinterpret_cast<const char*>(array + ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(array + ahead + 16), _MM_HINT_T0);
  }
}

int whole_vectors_begin(const Run& run) { return std::min(run.end, (run.begin + kVector - 1) / kVector * kVector); }

template <ElementType kGradient>
OOM_AVX512 void update(const Run& run, const AdamWConstants& constants, double* lanes) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) update_element<kGradient>(run, constants, i, lanes);
  const Constants c = broadcast(constants, run.gradient_scale);
  Lanes sums = load_lanes(lanes);
  for (; i + kVector <= run.end; i += kVector) {
    prefetch_state(run, i);
    for (int half = i; half < i + kVector; half += 16) {
      const __m512 g = load_scaled_gradient<kGradient>(run, run.shard_offset + half, c.scale);
      add_squares(sums, g);
      update_16(run, c, half, g);
    }
  }
  store_lanes(sums, lanes);
  for (; i < run.end; ++i) update_element<kGradient>(run, constants, i, lanes);
}

template <ElementType kGradient>
OOM_AVX512 void stats(const Run& run, double* lanes) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) stats_element<kGradient>(run, i, lanes);
  const __m512 scale = _mm512_set1_ps(run.gradient_scale);
  Lanes sums = load_lanes(lanes);
  for (; i + 16 <= run.end; i += 16) add_squares(sums, load_scaled_gradient<kGradient>(run, run.shard_offset + i, scale));
  store_lanes(sums, lanes);
  for (; i < run.end; ++i) stats_element<kGradient>(run, i, lanes);
}

OOM_AVX512 OOM_INLINE void store_line(void* address, __m512i line, bool past_caches) {
  if (past_caches)
    _mm512_stream_si512(static_cast<__m512i*>(address), line);
  else
    _mm512_storeu_si512(address, line);
}

bool line_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 64 == 0; }

// bf16_from_float on 16 lanes.
OOM_AVX512 OOM_INLINE __m256i round_16(__m512 weights) {
  const __m512i bits = _mm512_castps_si512(weights);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  rounded = _mm512_mask_and_epi32(rounded, _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000)), upper, _mm512_set1_epi32(0x8000));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(weights, weights, _CMP_UNORD_Q), upper, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(rounded);
}

OOM_AVX512 void publish_bf16_by_integers(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) {
    const __m512i low = _mm512_castsi256_si512(round_16(_mm512_loadu_ps(run.w + i)));
    store_line(out + i, _mm512_inserti64x4(low, round_16(_mm512_loadu_ps(run.w + i + 16)), 1), past_caches);
  }
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

OOM_AVX512_BF16 void publish_bf16_by_instruction(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector)
    store_line(out + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(run.w + i + 16), _mm512_loadu_ps(run.w + i)), past_caches);
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

OOM_AVX512 void publish_fp32(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kFP32>(run, i);
  float* out = static_cast<float*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + 16 <= run.end; i += 16) store_line(out + i, _mm512_castps_si512(_mm512_loadu_ps(run.w + i)), past_caches);
  for (; i < run.end; ++i) publish_element<ElementType::kFP32>(run, i);
}

}  // namespace

const KernelSet kAvx512Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                               {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                               {publish_bf16_by_integers, publish_fp32}};
const KernelSet kAvx512Bf16Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                                   {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                                   {publish_bf16_by_instruction, publish_fp32}};

}  // namespace oom::optim
