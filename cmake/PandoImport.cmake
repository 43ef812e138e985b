# pando_import(NAME HEADER header)
#
# Imports a library that has no CMake package as pando::NAME, or stops. The shared library is
# preferred where there are both. Also part of the installed package.
function(pando_import name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER" "")
  if(TARGET pando::${name})
    return()
  endif()
  find_library(PANDO_${name}_LIBRARY NAMES ${name})
  find_path(PANDO_${name}_INCLUDE_DIR NAMES ${arg_HEADER})
  mark_as_advanced(PANDO_${name}_LIBRARY PANDO_${name}_INCLUDE_DIR)
  if(NOT PANDO_${name}_LIBRARY OR NOT PANDO_${name}_INCLUDE_DIR)
    message(FATAL_ERROR "Pando needs the ${name} library and its header ${arg_HEADER}")
  endif()
  add_library(pando::${name} UNKNOWN IMPORTED)
  set_target_properties(pando::${name} PROPERTIES
    IMPORTED_LOCATION "${PANDO_${name}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PANDO_${name}_INCLUDE_DIR}")
endfunction()
