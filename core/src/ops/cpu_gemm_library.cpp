#include "ops/cpu_gemm_library.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "oom/error.h"
#include "oom/log.h"
#include "ops/cpu_gemm/cpu_gemm.h"

namespace oom::ops {
namespace {

/// Deep binding, because libtorch_cpu exports templates instantiated over its own oneDNN's types under the same names: without it the loader
/// gives those to ours, whose kernels are then never made ("could not execute a primitive"). AddressSanitizer refuses it: there OOM_CPU_GEMM=off.
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;

/// Opens the library beside this one, then by the loader's search path. Never closed: its threads' caches live in it.
OomGemmFunction open_library() {
  Dl_info here{};
  std::string beside;
  if (dladdr(reinterpret_cast<void*>(&cpu_gemm_library_available), &here) != 0 && here.dli_fname != nullptr)
    beside = (std::filesystem::path(here.dli_fname).parent_path() / "liboom_cpu_gemm.so").string();
  void* library = beside.empty() ? nullptr : dlopen(beside.c_str(), kOpenFlags);
  std::string why = library == nullptr ? dlerror() : "";
  if (library == nullptr) library = dlopen("liboom_cpu_gemm.so", kOpenFlags);
  void* function = library == nullptr ? nullptr : dlsym(library, "oom_cpu_gemm_v1");
  if (function == nullptr)
    log_warn("cpu_gemm: liboom_cpu_gemm.so cannot be used; matrix products of the CPU device go through LibTorch, more slowly. ", why);
  return reinterpret_cast<OomGemmFunction>(function);
}

/// OOM_CPU_GEMM=off leaves the library alone: for AddressSanitizer, and for comparing the two.
bool switched_off() {
  const char* wanted = std::getenv("OOM_CPU_GEMM");
  return wanted != nullptr && std::string_view(wanted) == "off";
}

OomGemmFunction library_function() {
  static const OomGemmFunction function = switched_off() ? nullptr : open_library();
  return function;
}

struct Operand {
  bool transposed;
  int64_t leading;
};

/// Reads a matrix as rows or columns with unit stride; nothing when it is neither.
std::optional<Operand> operand_of(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1), row = matrix.stride(0), column = matrix.stride(1);
  if (column == 1 && row >= columns) return Operand{false, row};
  if (row == 1 && column >= rows) return Operand{true, column};
  if (rows == 1 && column == 1) return Operand{false, columns};
  if (columns == 1 && row == 1) return Operand{true, rows};
  return std::nullopt;
}

OomGemmType gemm_type(const at::Tensor& matrix) { return matrix.scalar_type() == at::kFloat ? kOomGemmFloat32 : kOomGemmBfloat16; }

bool gemm_takes(const at::Tensor& matrix) { return matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kBFloat16; }

/// Returns whether oneDNN did the product.
bool multiply_onednn(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate, VaryingDimension varying) {
  const OomGemmFunction function = library_function();
  if (function == nullptr || !gemm_takes(a) || !gemm_takes(c)) return false;
  const auto left = operand_of(a), right = operand_of(b), out = operand_of(c);
  if (!left || !right || !out || out->transposed) return false;
  const OomGemmCall call{.a = a.const_data_ptr(),
                         .b = b.const_data_ptr(),
                         .c = c.mutable_data_ptr(),
                         .m = a.size(0),
                         .n = b.size(1),
                         .k = a.size(1),
                         .a_leading = left->leading,
                         .b_leading = right->leading,
                         .c_leading = out->leading,
                         .input_type = gemm_type(a),
                         .output_type = gemm_type(c),
                         .runtime = varying == VaryingDimension::kM ? kOomGemmRuntimeM : kOomGemmRuntimeK,
                         .a_transposed = left->transposed,
                         .b_transposed = right->transposed,
                         .accumulate = accumulate};
  char message[256] = "";
  const OomGemmStatus status = function(&call, message, sizeof message);
  OOM_CHECK(status != kOomGemmFailed, "oneDNN matmul [", call.m, ",", call.k, "] x [", call.k, ",", call.n, "] failed: ", message);
  if (status == kOomGemmUnsupported) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
      log_warn("cpu_gemm: oneDNN has no fast kernel for ", c10::toString(a.scalar_type()), " here; these products go through LibTorch");
    return false;
  }
  return true;
}

}  // namespace

bool cpu_gemm_library_available() { return library_function() != nullptr; }

void cpu_gemm_libtorch(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  at::Tensor out = c;
  if (!accumulate && c.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
    return;
  }
  // LibTorch rounds a BF16 product before anyone can add it: multiply in FP32 where the sum is kept in FP32.
  const at::ScalarType wide = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor product = at::mm(a.to(wide), b.to(wide));
  if (accumulate)
    out.add_(product);
  else
    out.copy_(product);
}

void cpu_gemm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate, VaryingDimension varying) {
  OOM_CHECK(a.device().is_cpu() && b.device().is_cpu() && c.device().is_cpu(), "operands of the CPU device's matrix products are in host memory");
  OOM_CHECK(a.dim() == 2 && b.dim() == 2 && c.dim() == 2 && a.size(1) == b.size(0) && c.size(0) == a.size(0) && c.size(1) == b.size(1),
            "shapes ", a.sizes(), " x ", b.sizes(), " -> ", c.sizes());
  OOM_CHECK(a.scalar_type() == b.scalar_type(), "operands of types ", c10::toString(a.scalar_type()), " and ", c10::toString(b.scalar_type()));
  if (c.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!accumulate) c.zero_();
    return;
  }
  if (accumulate && c.scalar_type() == at::kBFloat16) {  // one rounding, of the sum
    const at::Tensor product = at::empty(c.sizes(), c.options().dtype(at::kFloat));
    cpu_gemm(product, a, b, false, varying);
    at::Tensor out = c;
    out.add_(product);
    return;
  }
  if (!multiply_onednn(c, a, b, accumulate, varying)) cpu_gemm_libtorch(c, a, b, accumulate);
}

}  // namespace oom::ops
