# pando_add_library(NAME FOLDERS folder... LINK library...)
#
# A static library from all .cc files under the folders, with LINK as its public dependencies.
# With no such file it is an interface library, so that those who link it need not know.
function(pando_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;LINK")
  list(TRANSFORM arg_FOLDERS APPEND "/*.cc" OUTPUT_VARIABLE patterns)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${patterns})
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${arg_LINK})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_LINK})
  endif()
endfunction()
