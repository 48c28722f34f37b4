#include "runtime/library_versions.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <hwloc.h>

#include "hardware/gpu.h"
#include "oom/error.h"
#include "oom/version.h"
#include "plugin/build_stamp.h"
#if OOM_WITH_CUDA
#include <nccl.h>
#endif

namespace oom::runtime {
namespace {

std::string hwloc_version(unsigned version) { return cat(version >> 16, ".", (version >> 8) & 255, ".", version & 255); }
std::string cuda_version(int version) { return version > 0 ? cat(version / 1000, ".", version % 1000 / 10) : std::string(); }

// LibTorch has no call for its version; its build settings name it.
std::string torch_found() {
  const std::string settings = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const size_t begin = settings.find(key);
  if (begin == std::string::npos) return {};
  return settings.substr(begin + key.size(), settings.find_first_of(", \n", begin) - begin - key.size());
}

// "Intel(R) MKL-DNN v3.10.2 (Git Hash ...)": the copy inside LibTorch.
std::string onednn_found() {
  const std::string text = at::get_mkldnn_version();
  const size_t begin = text.find(" v");
  return begin == std::string::npos ? std::string() : text.substr(begin + 2, text.find(' ', begin + 2) - begin - 2);
}

std::string cudnn_found() {
  if (!at::detail::getCUDAHooks().hasCuDNN()) return {};
  const long version = at::detail::getCUDAHooks().versionCuDNN();
  return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::string nccl_found() {
#if OOM_WITH_CUDA
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess) return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
#endif
  return {};
}

}  // namespace

std::vector<LibraryVersion> library_versions() {
  const OomBuildStamp& stamp = plugin::engine_stamp();
  const hardware::GpuList gpus = hardware::list_gpus();
  return {{"oom", OOM_SDK_VERSION, OOM_SDK_VERSION},
          {"compiler", stamp.compiler, ""},
          {"LibTorch", stamp.libtorch, torch_found()},
          {"CUDA runtime", stamp.cuda, cuda_version(gpus.runtime_version)},
          {"CUDA driver", "", cuda_version(gpus.driver_version)},
          {"NCCL", stamp.nccl, nccl_found()},
          {"cuDNN", "", cudnn_found()},
          {"oneDNN of LibTorch", "", onednn_found()},
          {"hwloc", hwloc_version(HWLOC_API_VERSION), hwloc_version(hwloc_get_api_version())}};
}

}  // namespace oom::runtime
