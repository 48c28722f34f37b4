# oom_add_pytest(NAME FILE file.py LABELS labels... [TIMEOUT seconds] [COST seconds])
# One pytest file as one ctest entry. A file all of whose tests were skipped counts as skipped, not as passed. COST orders tests that
# run side by side: the longest first, so that no core waits at the end for one that began late. A folder that has any of its test_*.py
# registered must have all.
include_guard(GLOBAL)

option(OOM_REQUIRE_ENGINE "Python tests fail, instead of being skipped, where a part of the engine is missing" OFF)

function(oom_check_pytests)
  get_directory_property(registered OOM_PYTESTS)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" test_*.py)
  list(REMOVE_ITEM files ${registered})
  if(files)
    message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}: no test runs ${files}; add them to its CMakeLists.txt")
  endif()
endfunction()

function(oom_add_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILE;TIMEOUT;COST" "LABELS")
  get_directory_property(registered OOM_PYTESTS)
  if(NOT registered)
    cmake_language(DEFER CALL oom_check_pytests)
  endif()
  set_property(DIRECTORY APPEND PROPERTY OOM_PYTESTS "${arg_FILE}")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  if(NOT arg_COST)
    set(arg_COST 10)
  endif()
  add_test(NAME ${name}
    COMMAND "${OOM_VENV}/bin/python" -B -m pytest -q -ra -p no:cacheprovider "${CMAKE_CURRENT_SOURCE_DIR}/${arg_FILE}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_COST} SKIP_RETURN_CODE 77 ENVIRONMENT_MODIFICATION "${OOM_TEST_ENVIRONMENT}"
    ENVIRONMENT "OOM_BINARY=${PROJECT_BINARY_DIR}/bin/oom;OOM_REQUIRE_ENGINE=$<BOOL:${OOM_REQUIRE_ENGINE}>")
endfunction()
