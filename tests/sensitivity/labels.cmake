# The conformance suite's own objects, linked with the reference instead of the library: see
# sensitivity.cc. The reference defines the public API, so no program may link both.
list(FILTER sources EXCLUDE REGEX "/reference/")

# It tests the tests: once, in the plain builds, is enough.
set(SANITIZERS "")
set(TIMEOUT 120)
if(PANDO_SANITIZER)
  return()
endif()

file(GLOB reference_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/sensitivity/reference/*.cc")
file(GLOB support_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/support/*.cc")
# The reference has no memory nodes, no fabric and no index kinds.
list(FILTER support_sources EXCLUDE REGEX "/(memory_nodes|fault_fabric|proxy|toy_index).cc$")
add_executable(conformance_on_reference
  ${reference_sources}
  ${support_sources}
  "${PROJECT_SOURCE_DIR}/src/lab/check/history.cc"
  "${PROJECT_SOURCE_DIR}/src/lab/check/linearizability.cc"
  "${PROJECT_SOURCE_DIR}/src/lab/keys.cc"
  $<TARGET_OBJECTS:conformance_test>)
set_target_properties(conformance_on_reference PROPERTIES UNITY_BUILD ON)
target_compile_definitions(conformance_on_reference PRIVATE PANDO_ON_REFERENCE)
target_include_directories(conformance_on_reference PRIVATE
  "${CMAKE_CURRENT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
target_link_libraries(conformance_on_reference PRIVATE
  GTest::gtest_main GTest::gmock rapidcheck fmt::fmt Threads::Threads)
