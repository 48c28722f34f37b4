# What `cmake --install` lays down for authors of plugins (component sdk): the core library, the headers in core/include and the package `oom`
# for find_package, which brings oom_add_plugin.
include_guard(GLOBAL)

set(OOM_ENGINE_BUILD_TYPE "Debug")
string(TOUPPER "${CMAKE_BUILD_TYPE}" _oom_build_type)
if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_oom_build_type}}" MATCHES "-DNDEBUG")
  set(OOM_ENGINE_BUILD_TYPE "Release")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/oomConfig.cmake.in" "${PROJECT_BINARY_DIR}/cmake/oomConfig.cmake" @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/oomConfigVersion.cmake" COMPATIBILITY ExactVersion)

set_target_properties(oom_core PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS oom_core LIBRARY DESTINATION lib COMPONENT sdk)
if(TARGET oom_cpu_gemm)
  install(TARGETS oom_cpu_gemm LIBRARY DESTINATION lib COMPONENT sdk)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/core/include/" DESTINATION include COMPONENT sdk)
install(FILES
  "${PROJECT_BINARY_DIR}/cmake/oomConfig.cmake" "${PROJECT_BINARY_DIR}/cmake/oomConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/OomTorch.cmake" "${CMAKE_CURRENT_LIST_DIR}/OomStamp.cmake" "${CMAKE_CURRENT_LIST_DIR}/OomPlugin.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/OomCheckSymbols.cmake" "${CMAKE_CURRENT_LIST_DIR}/plugin.map"
  DESTINATION lib/cmake/oom COMPONENT sdk)
