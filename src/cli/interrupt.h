// Ctrl-C: a command that is asked to stop ends in order, with what it has.
#pragma once

#include <atomic>

namespace pando::cli {

// From now on SIGINT and SIGTERM make the flag true. A second one ends the process at once.
const std::atomic<bool>& stop_on_signals();

}  // namespace pando::cli
