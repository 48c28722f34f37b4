# oom_add_plugin(NAME KIND kind SOURCES files... [LINK targets...] [DIRECTORY folder])
#   KIND: model_adapter | expert_strategy | activation_strategy | selector
# Builds liboom_NAME.so (target oom_plugin_NAME) with one exported symbol into the plugin folder, installs it with the engine when part of
# it, and registers a test of its symbols. Also defines oom_plugin_NAME_static, built on demand: the same objects for unit tests, whose entry
# is called oom_plugin_v1_NAME so that several can be linked into one program.
# The same function serves plugins inside this tree and projects outside it that found the installed SDK.
include_guard(GLOBAL)

set(OOM_PLUGIN_MAP "${CMAKE_CURRENT_LIST_DIR}/plugin.map" CACHE INTERNAL "Version script that hides all but a plugin's entry")
set(OOM_PLUGIN_SYMBOL_CHECK "${CMAKE_CURRENT_LIST_DIR}/OomCheckSymbols.cmake" CACHE INTERNAL "Test of a plugin's symbols")
if(NOT DEFINED OOM_PLUGIN_DIRECTORY)
  set(OOM_PLUGIN_DIRECTORY "${CMAKE_BINARY_DIR}/lib/oom/plugins")
endif()

# Builds a module library under the plugin rules: hidden symbols, the version script, no undefined symbols.
function(oom_add_plugin_library target output_name directory)
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE oom::core oom::stamp)
  set_target_properties(${target} PROPERTIES
    PREFIX lib OUTPUT_NAME "oom_${output_name}" LIBRARY_OUTPUT_DIRECTORY "${directory}"
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    CUDA_RUNTIME_LIBRARY Shared
    BUILD_RPATH "${OOM_RPATH}" INSTALL_RPATH "$ORIGIN/../..;${OOM_RPATH}")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${OOM_PLUGIN_MAP}" "LINKER:-z,defs")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${OOM_PLUGIN_MAP}")
endfunction()

function(oom_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND;DIRECTORY" "SOURCES;LINK")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "oom_add_plugin(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "oom_add_plugin(${name}): a name is lower-case letters, digits and underscores, a letter first")
  endif()
  if(NOT arg_KIND MATCHES "^(model_adapter|expert_strategy|activation_strategy|selector)$")
    message(FATAL_ERROR "oom_add_plugin(${name}): KIND must be model_adapter, expert_strategy, activation_strategy or selector; got '${arg_KIND}'")
  endif()
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "oom_add_plugin(${name}): SOURCES is empty")
  endif()
  if(NOT arg_DIRECTORY)
    set(arg_DIRECTORY "${OOM_PLUGIN_DIRECTORY}")
  endif()
  set(target oom_plugin_${name})
  oom_add_plugin_library(${target} ${name} "${arg_DIRECTORY}" ${arg_SOURCES})
  set(kind_enumerator_model_adapter kModelAdapter)
  set(kind_enumerator_expert_strategy kExpertStrategy)
  set(kind_enumerator_activation_strategy kActivationStrategy)
  set(kind_enumerator_selector kSelector)
  set(declared_kind OOM_DECLARED_KIND=${kind_enumerator_${arg_KIND}})
  target_compile_definitions(${target} PRIVATE ${declared_kind})
  target_link_libraries(${target} PRIVATE ${arg_LINK})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")

  if(arg_DIRECTORY STREQUAL OOM_PLUGIN_DIRECTORY)
    install(TARGETS ${target} LIBRARY DESTINATION lib/oom/plugins)
    if(TARGET engine)
      add_dependencies(engine ${target})
    endif()
  endif()
  if(OOM_TESTS OR BUILD_TESTING)
    add_library(${target}_static STATIC EXCLUDE_FROM_ALL ${arg_SOURCES})
    target_compile_definitions(${target}_static PRIVATE OOM_PLUGIN_ENTRY=oom_plugin_v1_${name} ${declared_kind})
    target_link_libraries(${target}_static PUBLIC oom::core oom::stamp ${arg_LINK})
    target_include_directories(${target}_static PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
    add_test(NAME plugin_symbols_${name}
      COMMAND "${CMAKE_COMMAND}" -D "LIBRARY=$<TARGET_FILE:${target}>" -D "NM=${CMAKE_NM}" -P "${OOM_PLUGIN_SYMBOL_CHECK}")
    set_tests_properties(plugin_symbols_${name} PROPERTIES LABELS sdk)
  endif()
endfunction()
