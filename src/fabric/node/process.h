// Processes of this machine: whether one is still there.
#pragma once

#include <cstdint>

namespace pando::fabric::node {

// When the process began, in the system's ticks; 0 where there is no such process. Ids are reused,
// a pair of id and beginning is not.
std::uint64_t process_started(std::int32_t process);

}  // namespace pando::fabric::node
