# cmake -D LIBRARY=file -D NM=nm -P OomCheckSymbols.cmake
# Fails unless the library exports one symbol, the plugin entry.
execute_process(COMMAND "${NM}" -D --defined-only --format=posix "${LIBRARY}" OUTPUT_VARIABLE listing RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${LIBRARY}: nm failed")
endif()
string(REGEX MATCHALL "[^\n]+" lines "${listing}")
list(LENGTH lines count)
if(NOT count EQUAL 1 OR NOT lines MATCHES "^oom_plugin_v[0-9]+ T ")
  message(FATAL_ERROR "${LIBRARY}: must export one symbol, oom_plugin_v1; it exports ${count}:\n${listing}")
endif()
