# Third-party libraries. System packages come from scripts/setup; LibTorch, cuDNN and NCCL are the copies of the PyPI wheel.
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost CONFIG REQUIRED COMPONENTS program_options)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
find_library(OOM_LIBELF elf REQUIRED)
find_path(OOM_XXHASH_INCLUDE xxhash.h REQUIRED)
if(OOM_TESTS)
  find_package(GTest REQUIRED)
endif()

if(OOM_ENGINE)
  include(OomTorch)
endif()
