#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "optim/adamw_kernels.h"

#define OOM_TARGET __attribute__((target("avx2,fma")))
#define OOM_INLINE __attribute__((always_inline)) inline

namespace oom::optim {
namespace {

using Floats = __m256;
using Doubles = __m256d;
constexpr int kWidth = 8;

OOM_TARGET OOM_INLINE Floats load(const float* address) { return _mm256_loadu_ps(address); }
OOM_TARGET OOM_INLINE Floats load_bf16(const uint16_t* address) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address))), 16));
}
OOM_TARGET OOM_INLINE void store(float* address, Floats values) { _mm256_storeu_ps(address, values); }
OOM_TARGET OOM_INLINE void store_streaming(float* address, Floats values) { _mm256_stream_ps(address, values); }
OOM_TARGET OOM_INLINE Floats broadcast(float value) { return _mm256_set1_ps(value); }
OOM_TARGET OOM_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
OOM_TARGET OOM_INLINE Floats root(Floats values) { return _mm256_sqrt_ps(values); }

OOM_TARGET OOM_INLINE void add_squares(Doubles* sums, Floats g) {
  const Doubles low = _mm256_cvtps_pd(_mm256_castps256_ps128(g)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(g, 1));
  // The product of two floats is exact in double: fused or not, the sum is the same.
  sums[0] = _mm256_fmadd_pd(low, low, sums[0]);
  sums[1] = _mm256_fmadd_pd(high, high, sums[1]);
}

#include "optim/adamw_vectors.inc"

// bf16_from_float on 8 lanes; results in the low halves of 32-bit lanes.
OOM_TARGET OOM_INLINE __m256i round_8(__m256 weights) {
  const __m256i bits = _mm256_castps_si256(weights);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i denormal = _mm256_cmpeq_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)), _mm256_setzero_si256());
  const __m256i flushed = _mm256_blendv_epi8(rounded, _mm256_and_si256(upper, _mm256_set1_epi32(0x8000)), denormal);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(weights, weights, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(flushed, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
}

OOM_TARGET void publish_bf16(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(round_8(load(run.w + i)), round_8(load(run.w + i + kWidth))), 0xd8);
    auto* address = reinterpret_cast<__m256i*>(out + i);
    past_caches ? _mm256_stream_si256(address, packed) : _mm256_storeu_si256(address, packed);
  }
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

}  // namespace

const KernelSet kAvx2Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                             {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                             {publish_bf16, publish_fp32}};

}  // namespace oom::optim
