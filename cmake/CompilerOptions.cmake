# Language, warnings and sanitizers, for every target of the project.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "Pando needs clang 19: g++ 12 miscompiles coroutines. Use a preset.")
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(PANDO_CCACHE ccache)
  mark_as_advanced(PANDO_CCACHE)
  if(PANDO_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${PANDO_CCACHE}")
  endif()
endif()

# Those that g++ knows too: public headers and examples are checked with both compilers.
set(PANDO_COMMON_WARNINGS
    -Wall -Wextra -Wpedantic -Werror
    -Wshadow
    -Wconversion
    -Wsign-conversion
    -Wdouble-promotion
    -Wold-style-cast
    -Wnon-virtual-dtor
    -Woverloaded-virtual
    -Wimplicit-fallthrough
    -Wformat=2
    -Wundef
    -Wextra-semi)
set(PANDO_CLANG_WARNINGS
    ${PANDO_COMMON_WARNINGS}
    -Wunused
    -Wcomma
    -Wnewline-eof
    -Wunreachable-code-aggressive
    -Wthread-safety
    # Leaving fields of an Options struct at their defaults is what designators are for.
    -Wno-missing-designated-field-initializers)
set(PANDO_GXX_WARNINGS ${PANDO_COMMON_WARNINGS} -Wno-missing-field-initializers)

add_compile_options(${PANDO_CLANG_WARNINGS} -fdiagnostics-color=auto)

if(PANDO_SANITIZER STREQUAL "asan")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(PANDO_SANITIZER STREQUAL "tsan")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(PANDO_SANITIZER)
  message(FATAL_ERROR "PANDO_SANITIZER is '${PANDO_SANITIZER}': not empty, asan or tsan")
endif()

if(PANDO_LTO)
  add_compile_options(-flto=thin)
  add_link_options(-flto=thin)
endif()
