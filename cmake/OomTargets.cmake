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

# oom_add_test(NAME SOURCES files... [LINK targets...] [LABELS labels...])
# One GoogleTest program, registered with ctest as a whole.
function(oom_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;LABELS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE oom_options ${arg_LINK} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 300)
endfunction()
