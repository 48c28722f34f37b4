/// What a library was built with, as text, field by field: the lock between engine and plugin.
/// OOM_BUILD_STAMP, used in a source file, describes how that file is being compiled. The engine has one, every plugin carries one, and
/// a plugin is refused unless all fields agree: C++ classes, LibTorch tensors and exceptions pass between the two.
/// This is the one SDK header that looks at build flags; that is its purpose.
#pragma once

#include <torch/version.h>

#include <cstddef>
#include <cstdint>

#include "oom/version.h"

/// Every field is a constant string, "none" when the thing is not used. Fields are only appended.
extern "C" struct OomBuildStamp {
  uint64_t struct_size;          ///< sizeof(OomBuildStamp) where the stamp was made
  const char* compiler;          ///< "gcc 12.2.0"
  const char* standard_library;  ///< "libstdc++ 12"
  const char* library_abi;       ///< "cxx11" or "old", and the library's debug mode
  const char* cxx_standard;      ///< value of __cplusplus
  const char* libtorch;          ///< "2.11.0"
  const char* cuda;              ///< "13.0", or "none": built for the CPU device alone
  const char* nccl;              ///< "2.28.9", or "none"
  const char* sdk;               ///< version of these headers
  const char* build_mode;        ///< "release" (NDEBUG) or "debug", and sanitizers
};

static_assert(offsetof(OomBuildStamp, compiler) == 8);
static_assert(offsetof(OomBuildStamp, standard_library) == 16);
static_assert(offsetof(OomBuildStamp, library_abi) == 24);
static_assert(offsetof(OomBuildStamp, cxx_standard) == 32);
static_assert(offsetof(OomBuildStamp, libtorch) == 40);
static_assert(offsetof(OomBuildStamp, cuda) == 48);
static_assert(offsetof(OomBuildStamp, nccl) == 56);
static_assert(offsetof(OomBuildStamp, sdk) == 64);
static_assert(offsetof(OomBuildStamp, build_mode) == 72);

#define OOM_STAMP_TEXT_(value) #value
#define OOM_STAMP_TEXT(value) OOM_STAMP_TEXT_(value)

#if defined(__clang__)
#define OOM_STAMP_COMPILER \
  "clang " OOM_STAMP_TEXT(__clang_major__) "." OOM_STAMP_TEXT(__clang_minor__) "." OOM_STAMP_TEXT(__clang_patchlevel__)
#else
#define OOM_STAMP_COMPILER "gcc " OOM_STAMP_TEXT(__GNUC__) "." OOM_STAMP_TEXT(__GNUC_MINOR__) "." OOM_STAMP_TEXT(__GNUC_PATCHLEVEL__)
#endif

#if defined(_LIBCPP_VERSION)
#define OOM_STAMP_LIBRARY "libc++ " OOM_STAMP_TEXT(_LIBCPP_VERSION)
#define OOM_STAMP_LIBRARY_ABI "abi " OOM_STAMP_TEXT(_LIBCPP_ABI_VERSION)
#else
#define OOM_STAMP_LIBRARY "libstdc++ " OOM_STAMP_TEXT(_GLIBCXX_RELEASE)
#if _GLIBCXX_USE_CXX11_ABI
#define OOM_STAMP_STRING_ABI "cxx11"
#else
#define OOM_STAMP_STRING_ABI "old"
#endif
#if defined(_GLIBCXX_DEBUG)
#define OOM_STAMP_LIBRARY_ABI OOM_STAMP_STRING_ABI " with debug containers"
#else
#define OOM_STAMP_LIBRARY_ABI OOM_STAMP_STRING_ABI
#endif
#endif

/// The CMake target oom::stamp says these from the toolkit and the NCCL that were found.
#if !defined(OOM_STAMP_CUDA)
#define OOM_STAMP_CUDA "none"
#endif
#if !defined(OOM_STAMP_NCCL)
#define OOM_STAMP_NCCL "none"
#endif

#if defined(NDEBUG)
#define OOM_STAMP_CHECKS "release"
#else
#define OOM_STAMP_CHECKS "debug"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define OOM_STAMP_MODE OOM_STAMP_CHECKS " with address sanitizer"
#elif defined(__SANITIZE_THREAD__)
#define OOM_STAMP_MODE OOM_STAMP_CHECKS " with thread sanitizer"
#else
#define OOM_STAMP_MODE OOM_STAMP_CHECKS
#endif

/// The stamp of the source file that uses it: a constant initialiser of OomBuildStamp.
#define OOM_BUILD_STAMP                                                                                                            \
  OomBuildStamp {                                                                                                                  \
    sizeof(OomBuildStamp), OOM_STAMP_COMPILER, OOM_STAMP_LIBRARY, OOM_STAMP_LIBRARY_ABI, OOM_STAMP_TEXT(__cplusplus), TORCH_VERSION, \
        OOM_STAMP_CUDA, OOM_STAMP_NCCL, OOM_SDK_VERSION, OOM_STAMP_MODE                                                            \
  }
