# oom_embed_files(TARGET HEADER name.h NAMESPACE a::b  kName file [file...]  [kOther file ...])
# Makes a header with one string_view constant a name, the text of its files one after another, and lets TARGET include it. Made anew when a file changes.
# Names begin with k and a capital letter.
function(oom_embed_files target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;NAMESPACE" "")
  set(files)
  foreach(word IN LISTS arg_UNPARSED_ARGUMENTS)
    if(NOT word MATCHES "^k[A-Z][A-Za-z]*$")
      list(APPEND files "${CMAKE_CURRENT_SOURCE_DIR}/${word}")
    endif()
  endforeach()
  set(header "${CMAKE_CURRENT_BINARY_DIR}/embedded/${arg_HEADER}")
  set(script "${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake")
  add_custom_command(
    OUTPUT "${header}"
    COMMAND "${CMAKE_COMMAND}" "-DHEADER=${header}" "-DNAMESPACE=${arg_NAMESPACE}" "-DWORDS=${arg_UNPARSED_ARGUMENTS}" "-DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}" -P "${script}"
    DEPENDS ${files} "${script}"
    COMMENT "Embedding ${arg_HEADER}"
    VERBATIM)
  # A rule is known only in the folder that states it, and the target may be of another: hence a target of its own in between.
  string(MAKE_C_IDENTIFIER "${target}_${arg_HEADER}" rule)
  add_custom_target(${rule} DEPENDS "${header}")
  add_dependencies(${target} ${rule})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/embedded")
endfunction()
