#include "ops/current_device.h"

#if OOM_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace oom::ops {

int compute_capability_of(const at::Tensor& tensor) {
#if OOM_WITH_CUDA
  if (tensor.device().is_cuda()) {
    const cudaDeviceProp* properties = at::cuda::getDeviceProperties(tensor.device().index());
    return properties->major * 10 + properties->minor;
  }
#endif
  return 0;
}

}  // namespace oom::ops
