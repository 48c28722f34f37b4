/// The C door of liboom_cpu_gemm.so: matrix products of the CPU device through oneDNN.
/// The library is opened at run time, so that a GPU run, and a machine without oneDNN, never load it. Plain types only: it knows no LibTorch.
#pragma once

#include <cstdint>

extern "C" {

enum OomGemmType : int32_t { kOomGemmFloat32 = 0, kOomGemmBfloat16 = 1 };
/// Which dimension changes from call to call: primitives are cached for all its values.
enum OomGemmRuntime : int32_t { kOomGemmRuntimeM = 0, kOomGemmRuntimeK = 1 };
enum OomGemmStatus : int32_t { kOomGemmDone = 0, kOomGemmUnsupported = 1, kOomGemmFailed = 2 };

/// c[m,n] = a[m,k] b[k,n], or c += a b. An operand that is not transposed has rows `leading` elements apart; a transposed one has columns
/// `leading` elements apart. c has rows c_leading apart. a and b share one type, accumulation is FP32 and FP32 products are true FP32.
struct OomGemmCall {
  const void* a;
  const void* b;
  void* c;
  int64_t m, n, k;
  int64_t a_leading, b_leading, c_leading;
  OomGemmType input_type, output_type;
  OomGemmRuntime runtime;
  bool a_transposed, b_transposed, accumulate;
};

/// Runs one product on the calling thread's OpenMP team. kOomGemmUnsupported: this processor has no fast kernel for the types.
/// kOomGemmFailed: `message` (of `message_bytes`) says why. m, n and k are greater than 0.
using OomGemmFunction = OomGemmStatus (*)(const OomGemmCall* call, char* message, int64_t message_bytes);
__attribute__((visibility("default"))) OomGemmStatus oom_cpu_gemm_v1(const OomGemmCall* call, char* message, int64_t message_bytes) noexcept;
}
