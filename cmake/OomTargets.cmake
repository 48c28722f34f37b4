# What every target of this project shares: language level, warnings, sanitizers, output folders.
include_guard(GLOBAL)

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(OOM_PLUGIN_DIRECTORY "${PROJECT_BINARY_DIR}/lib/oom/plugins")

add_library(oom_options INTERFACE)
target_compile_features(oom_options INTERFACE cxx_std_20)
target_compile_options(oom_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers>
  # g++ 12 warns of overlapping copies inside std::string's own operator+ at -O3 (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${OOM_WERROR}>>:-Werror -Wno-error=restrict>)
if(OOM_SANITIZE)
  target_compile_options(oom_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OOM_SANITIZE} -fno-omit-frame-pointer -g1>)
  target_link_options(oom_options INTERFACE -fsanitize=${OOM_SANITIZE})
endif()

# Headers that are parsed once, as targets to REUSE_FROM. They link nothing that defines a macro of the project: a precompiled header serves only
# sources that define what it was made with, and that are compiled with the same options.
function(oom_add_precompiled target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LINK;OPTIONS")
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled/${target}.cpp" CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/precompiled/${target}.cpp")
  target_link_libraries(${target} PRIVATE oom_options ${arg_LINK})
  target_compile_options(${target} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
endfunction()

# What is tested is optimised as ever; the tests themselves compile in half the time at -O1. Under sanitizers nothing is optimised (CMakePresets.json).
if(NOT OOM_SANITIZE)
  set(OOM_TEST_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-O1>)
endif()
function(oom_precompile_test_headers)
  set(googletest <gmock/gmock.h> <gtest/gtest.h>)
  oom_add_precompiled(oom_test_headers HEADERS ${googletest} LINK GTest::gmock OPTIONS ${OOM_TEST_OPTIONS})
  if(OOM_ENGINE)
    oom_add_precompiled(oom_tensor_test_headers HEADERS ${googletest} <ATen/TensorOperators.h> <ATen/ops/zeros.h> LINK GTest::gmock oom::torch OPTIONS ${OOM_TEST_OPTIONS})
  endif()
endfunction()

# Threads of OpenMP that wait do so asleep: where tests share cores, spinning ones make a test take five times the processor time and more.
set(OOM_TEST_ENVIRONMENT OMP_WAIT_POLICY=set:passive)

# oom_add_test(NAME SOURCES files... [LINK targets...] [LABELS labels...])
# One GoogleTest program, registered with ctest as a whole.
function(oom_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;LABELS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE oom_options ${arg_LINK} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${OOM_TEST_OPTIONS})
  if("${arg_LINK}" MATCHES "oom_core|oom_plugin")
    target_precompile_headers(${name} REUSE_FROM oom_tensor_test_headers)
  else()
    target_precompile_headers(${name} REUSE_FROM oom_test_headers)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 300 ENVIRONMENT_MODIFICATION "${OOM_TEST_ENVIRONMENT}")
endfunction()
