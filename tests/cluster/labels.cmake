#Real processes, \
    which take their time and their cores : sanitizers see the same code in tests / node.
set(SANITIZERS) set(SERIAL ON) if (TARGET pando_cli AND NOT TARGET pando_binary)
    add_library(pando_binary INTERFACE)
        target_compile_definitions(pando_binary INTERFACE PANDO_BINARY = "$<TARGET_FILE:pando_cli>")
            add_dependencies(pando_binary pando_cli) endif() if (TARGET pando_binary)
                set(LIBRARIES pando_binary) endif()
