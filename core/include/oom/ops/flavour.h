/// The variants of operators in which model families differ.
#pragma once

namespace oom::ops {

/// How an RMS norm scales and where it rounds; n = x * rsqrt(mean(x^2) + eps) in FP32.
enum class NormFlavour : int {
  kLlama,        ///< y = w * round(n): n is rounded to x's type before the product (Mixtral, Qwen3)
  kZeroCentred,  ///< y = n * (1 + w) in FP32, rounded once (Qwen3.5: layer, final, query and key norms)
  kPlain,        ///< y = n * w in FP32, rounded once; the weight may be missing (Gemma4)
  kGated,        ///< y = round(w * round(n)) * silu(gate), the last product in FP32 (output norm of the Gated DeltaNet)
};

/// The function on the gate half of a gated feed-forward.
enum class GatedActivation : int {
  kSilu,      ///< g / (1 + exp(-g))
  kGeluTanh,  ///< 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3)))
};

}  // namespace oom::ops
