# Real processes, which take their time and their cores: sanitizers see the same code in tests/node.
set(SANITIZERS "")
set(SERIAL ON)
include("${CMAKE_CURRENT_LIST_DIR}/../cli/labels.cmake")
