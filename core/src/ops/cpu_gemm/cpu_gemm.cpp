#include "cpu_gemm.h"

#include <cstdio>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>

namespace {

using dnnl::memory;

memory::data_type data_type(OomGemmType type) { return type == kOomGemmFloat32 ? memory::data_type::f32 : memory::data_type::bf16; }

memory::dims strides(bool transposed, int64_t leading) { return transposed ? memory::dims{1, leading} : memory::dims{leading, 1}; }

/// Everything but the pointers and the dimension that varies.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, int, int, bool, bool, bool>;

Key key_of(const OomGemmCall& call) {
  const bool varies_m = call.runtime == kOomGemmRuntimeM;
  return {varies_m ? -1 : call.m, call.n,          varies_m ? call.k : -1, call.a_leading,    call.b_leading,    call.c_leading,
          call.input_type,        call.output_type, call.runtime,           call.a_transposed, call.b_transposed, call.accumulate};
}

struct Product {
  dnnl::matmul primitive;
  bool supported = false;
};

Product make_product(const dnnl::engine& engine, const OomGemmCall& call) {
  const int64_t m = call.runtime == kOomGemmRuntimeM ? DNNL_RUNTIME_DIM_VAL : call.m;
  const int64_t k = call.runtime == kOomGemmRuntimeK ? DNNL_RUNTIME_DIM_VAL : call.k;
  const memory::desc a({m, k}, data_type(call.input_type), strides(call.a_transposed, call.a_leading));
  const memory::desc b({k, call.n}, data_type(call.input_type), strides(call.b_transposed, call.b_leading));
  const memory::desc c({m, call.n}, data_type(call.output_type), strides(false, call.c_leading));
  dnnl::primitive_attr attributes;
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  if (call.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc description(a, b, c);
  const dnnl::matmul::primitive_desc found(description, attributes, engine, /*allow_empty=*/true);
  // The reference kernels are hundreds of times slower than what the caller falls back to.
  if (!found || std::string_view(found.impl_info_str()).find("ref") != std::string_view::npos) return {};
  return {dnnl::matmul(found), true};
}

/// One a thread: a primitive's scratchpad belongs to the thread that made it. Never destroyed before the thread ends; shapes are few.
struct Products {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Product> by_key;
};

OomGemmStatus run(const OomGemmCall& call) {
  thread_local Products products;
  const Key key = key_of(call);
  auto found = products.by_key.find(key);
  if (found == products.by_key.end()) found = products.by_key.emplace(key, make_product(products.engine, call)).first;
  if (!found->second.supported) return kOomGemmUnsupported;
  const auto operand = [&](int64_t rows, int64_t columns, OomGemmType type, bool transposed, int64_t leading, const void* data) {
    return memory(memory::desc({rows, columns}, data_type(type), strides(transposed, leading)), products.engine, const_cast<void*>(data));
  };
  found->second.primitive.execute(
      products.stream, {{DNNL_ARG_SRC, operand(call.m, call.k, call.input_type, call.a_transposed, call.a_leading, call.a)},
                        {DNNL_ARG_WEIGHTS, operand(call.k, call.n, call.input_type, call.b_transposed, call.b_leading, call.b)},
                        {DNNL_ARG_DST, operand(call.m, call.n, call.output_type, false, call.c_leading, call.c)}});
  products.stream.wait();
  return kOomGemmDone;
}

}  // namespace

extern "C" OomGemmStatus oom_cpu_gemm_v1(const OomGemmCall* call, char* message, int64_t message_bytes) noexcept {
  try {
    return run(*call);
  } catch (const std::exception& error) {
    if (message_bytes > 0) std::snprintf(message, static_cast<size_t>(message_bytes), "%s", error.what());
    return kOomGemmFailed;
  }
}
