# Installs the library, its public headers, the command and a package: find_package(Pando) gives
# pando::pando.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Pando")

install(TARGETS pando EXPORT PandoTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(EXPORT PandoTargets NAMESPACE pando:: DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/packaging/pando-memnode@.service"
  DESTINATION lib/systemd/system)
if(TARGET pando_cli)
  install(TARGETS pando_cli)
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/PandoConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/PandoConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/PandoConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/PandoConfig.cmake"
  "${PROJECT_BINARY_DIR}/PandoConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/PandoImport.cmake"
  DESTINATION "${package_dir}")
