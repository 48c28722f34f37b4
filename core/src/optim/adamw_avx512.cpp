// Two sets: rounding by vcvtne2ps2bf16, and by integer operations for processors without it.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "optim/adamw_kernels.h"

#define OOM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define OOM_TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define OOM_INLINE __attribute__((always_inline)) inline

namespace oom::optim {
namespace {

using Floats = __m512;
using Doubles = __m512d;
constexpr int kWidth = 16;

OOM_TARGET OOM_INLINE Floats load(const float* address) { return _mm512_loadu_ps(address); }
OOM_TARGET OOM_INLINE Floats load_bf16(const uint16_t* address) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(address))), 16));
}
OOM_TARGET OOM_INLINE void store(float* address, Floats values) { _mm512_storeu_ps(address, values); }
OOM_TARGET OOM_INLINE void store_streaming(float* address, Floats values) { _mm512_stream_ps(address, values); }
OOM_TARGET OOM_INLINE Floats broadcast(float value) { return _mm512_set1_ps(value); }
OOM_TARGET OOM_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
OOM_TARGET OOM_INLINE Floats root(Floats values) { return _mm512_sqrt_ps(values); }

OOM_TARGET OOM_INLINE void add_squares(Doubles* sums, Floats g) {
  const Doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(g)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(g, 1));
  // The product of two floats is exact in double: fused or not, the sum is the same.
  sums[0] = _mm512_fmadd_pd(low, low, sums[0]);
  sums[1] = _mm512_fmadd_pd(high, high, sums[1]);
}

#include "optim/adamw_vectors.inc"

// bf16_from_float on 16 lanes.
OOM_TARGET OOM_INLINE __m256i round_16(__m512 weights) {
  const __m512i bits = _mm512_castps_si512(weights);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  rounded = _mm512_mask_and_epi32(rounded, _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000)), upper, _mm512_set1_epi32(0x8000));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(weights, weights, _CMP_UNORD_Q), upper, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(rounded);
}

OOM_TARGET OOM_INLINE void store_line(void* address, __m512i line, bool past_caches) {
  past_caches ? _mm512_stream_si512(static_cast<__m512i*>(address), line) : _mm512_storeu_si512(address, line);
}

OOM_TARGET void publish_bf16_by_integers(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) {
    const __m512i low = _mm512_castsi256_si512(round_16(load(run.w + i)));
    store_line(out + i, _mm512_inserti64x4(low, round_16(load(run.w + i + kWidth)), 1), past_caches);
  }
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

OOM_TARGET_BF16 void publish_bf16_by_instruction(const Run& run) {
  int i = run.begin;
  for (const int head = whole_vectors_begin(run); i < head; ++i) publish_element<ElementType::kBF16>(run, i);
  auto* out = static_cast<uint16_t*>(run.publish) + run.shard_offset;
  const bool past_caches = line_aligned(out);
  for (; i + kVector <= run.end; i += kVector) store_line(out + i, (__m512i)_mm512_cvtne2ps_pbh(load(run.w + i + kWidth), load(run.w + i)), past_caches);
  for (; i < run.end; ++i) publish_element<ElementType::kBF16>(run, i);
}

}  // namespace

const KernelSet kAvx512Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                               {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                               {publish_bf16_by_integers, publish_fp32}};
const KernelSet kAvx512Bf16Kernels{{update<ElementType::kBF16>, update<ElementType::kFP32>},
                                   {stats<ElementType::kBF16>, stats<ElementType::kFP32>},
                                   {publish_bf16_by_instruction, publish_fp32}};

}  // namespace oom::optim
