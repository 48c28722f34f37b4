# oom_add_plugin(NAME KIND kind SOURCES files... [LINK targets...])
# Builds liboom_NAME.so into the plugin folder, with one exported symbol.
include_guard(GLOBAL)
function(oom_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND" "SOURCES;LINK")
  set(target oom_plugin_${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE oom_core ${arg_LINK})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME "oom_${name}"
    LIBRARY_OUTPUT_DIRECTORY "${OOM_PLUGIN_DIRECTORY}"
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    BUILD_RPATH "${PROJECT_BINARY_DIR}/lib;${OOM_RPATH}")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map" "LINKER:-z,defs")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/plugin.map")
endfunction()
