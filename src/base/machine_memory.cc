#include "base/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

#include "base/parse.h"

namespace pando::base {

namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Easy to read, and rounded down: what is offered must fit.
std::string round_size(std::uint64_t bytes) {
  constexpr std::uint64_t kReadable = 100;  // GiB from here on
  const std::uint64_t unit = bytes >= kReadable * 1024 * kMiB ? 1024 * kMiB : kMiB;
  return format_size(bytes < unit ? bytes : bytes / unit * unit);
}

// The number after `name` in a file of "NAME NUMBER …" lines.
std::optional<std::uint64_t> find_number(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  std::string rest;
  while (file >> word >> number && std::getline(file, rest)) {
    if (word == name) return number;
  }
  return std::nullopt;
}

// Nothing where there is no such file, or it says "max".
std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  if (!(file >> word)) return std::nullopt;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// How one version of control groups tells what we ask for.
struct Version {
  const char* folder;
  const char* limit;
  const char* used;
  const char* reclaimable;  // in memory.stat: files that the kernel drops when memory is short
};
constexpr Version kVersion1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_inactive_file"};
constexpr Version kVersion2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// The group and all above it count. Within a container the outer part of the path is not there,
// and the container's own limit stands where the root's would.
void apply_groups(MachineMemory& memory, const fs::path& root, const Version& version,
                  fs::path group) {
  for (;;) {
    const fs::path folder = root / version.folder / group.relative_path();
    const auto limit = read_number(folder / version.limit);
    if (limit && *limit < memory.total) {
      memory.total = *limit;
      memory.group = group.string();
    }
    const auto used = read_number(folder / version.used);
    if (limit && used) {
      const std::uint64_t dropped =
          find_number(folder / "memory.stat", version.reclaimable).value_or(0);
      const std::uint64_t held = *used - std::min(*used, dropped);
      memory.available = std::min(memory.available, *limit - std::min(*limit, held));
    }
    if (!group.has_relative_path()) return;
    group = group.parent_path();
  }
}

}  // namespace

std::string MachineMemory::to_string() const {
  if (group.empty()) return fmt::format("this machine has {} of memory", round_size(total));
  return fmt::format("processes of control group '{}' may have {} of memory", group,
                     round_size(total));
}

MachineMemory machine_memory(const fs::path& root) {
  MachineMemory memory;
  const auto kibibytes = [&](std::string_view name) {
    const auto number = find_number(root / "proc/meminfo", name);
    return number ? *number * 1024 : MachineMemory::kUnknown;
  };
  memory.total = kibibytes("MemTotal:");
  memory.available = kibibytes("MemAvailable:");
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "NUMBER:CONTROLLERS:PATH"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) apply_groups(memory, root, kVersion2, path);
    if (controllers == "memory") apply_groups(memory, root, kVersion1, path);
  }
  memory.available = std::min(memory.available, memory.total);
  return memory;
}

Status check_fits(std::string_view name, std::uint64_t bytes, const MachineMemory& memory) {
  if (bytes <= memory.total) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: {} can never fit: {}; give less than that", name, format_size(bytes),
                          memory.to_string()));
}

Status check_available(std::string_view name, std::uint64_t bytes, const MachineMemory& memory) {
  if (bytes <= memory.available) return {};
  return fail(
      ErrorCode::kOutOfMemory,
      fmt::format("{}: {} cannot be had now: {} is available, and {}; give less, or end "
                  "what uses it",
                  name, format_size(bytes), round_size(memory.available), memory.to_string()));
}

}  // namespace pando::base
