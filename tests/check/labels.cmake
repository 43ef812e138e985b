# A simulated run is one thread. ThreadSanitizer sees what is beside it, campaigns, and whole runs
# side by side where ./pando test compares the builds.
if(PANDO_SANITIZER STREQUAL "tsan")
  list(FILTER sources INCLUDE REGEX "/campaign")
endif()
