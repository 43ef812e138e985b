# The pool, the indexes, and the tcp client with its server once more, with their deliberate faults
# compiled in (base/mutants.h).
# They stand before the library when the program is linked, so nothing of theirs is taken from it.
file(GLOB_RECURSE mutated CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/src/pool/*.cc" "${PROJECT_SOURCE_DIR}/src/index/*.cc"
  "${PROJECT_SOURCE_DIR}/src/fabric/node/*.cc" "${PROJECT_SOURCE_DIR}/src/fabric/remote/*.cc"
  "${PROJECT_SOURCE_DIR}/src/fabric/tcp/*.cc")
list(APPEND sources ${mutated})
# And the command, so that what it prints of a failure can be tried.
file(GLOB command CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cli/*.cc")
list(FILTER command EXCLUDE REGEX "/(main|bench[a-z_]*)\\.cc$")
list(APPEND sources ${command})
# Some stay apart, as in the library.
file(GLOB apart CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/src/fabric/node/*.cc" "${PROJECT_SOURCE_DIR}/src/fabric/remote/*.cc"
  "${PROJECT_SOURCE_DIR}/src/fabric/tcp/*.cc")
set_source_files_properties(${apart} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(NOT TARGET mutants_on)
  add_library(mutants_on INTERFACE)
  target_compile_definitions(mutants_on INTERFACE PANDO_MUTANTS)
endif()
set(LIBRARIES mutants_on CLI11::CLI11)

# Clang-tidy has seen these files once already.
set(CMAKE_EXPORT_COMPILE_COMMANDS OFF)

# It tests the checker: once, in the plain builds, is enough.
set(SANITIZERS "")
