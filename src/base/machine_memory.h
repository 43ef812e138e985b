// What memory there is for processes of this machine: all of it, or what a container may have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::base {

struct MachineMemory {
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  // All that this process could ever have, swap left out; kUnknown where the system does not tell.
  std::uint64_t total = kUnknown;
  // Of that, what can be had now: what is free, or would be freed for it. Never more than total.
  std::uint64_t available = kUnknown;
  // The control group that holds total down, as "/system.slice"; empty: it is the machine's own.
  std::string group;

  std::string to_string() const;  // "this machine has 23GiB of memory"
};

// From /proc/meminfo and the limits of the process's control groups (versions 1 and 2), up to the
// root. `root` stands before those paths, for tests.
MachineMemory machine_memory(const std::filesystem::path& root = "/");

// kInvalidArgument where so many bytes could never be had, whatever else ends: names both sizes.
Status check_fits(std::string_view name, std::uint64_t bytes, const MachineMemory& memory);
// kOutOfMemory where so many bytes cannot be had now.
Status check_available(std::string_view name, std::uint64_t bytes, const MachineMemory& memory);

}  // namespace pando::base
