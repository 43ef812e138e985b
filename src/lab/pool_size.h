// How large an embedded pool a benchmark needs, and whether the machine has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::lab {

struct DataSize {
  std::uint64_t items = 0;  // at the end of all workloads
  std::uint64_t key_bytes = 0;
  std::uint64_t value_bytes = 0;

  std::uint64_t bytes() const { return items * (key_bytes + value_bytes); }
};

// The size of a pool for `data`: with room for half-empty nodes, headers, and values that wait to
// be freed; at most a share of `available` (base/machine_memory.h), which `pools` such pools
// divide. kInvalidArgument, with the figures, where the data cannot fit.
Result<std::uint64_t> choose_pool_size(const DataSize& data, std::uint64_t available,
                                       std::uint64_t pools);

// Puts a size into a URL that names the embedded fabric without one ("embedded",
// "embedded?nodes=2"). Any other URL says all that is needed.
bool lacks_size(std::string_view pool_url);
std::string with_size(std::string_view pool_url, std::uint64_t bytes);

}  // namespace pando::lab
