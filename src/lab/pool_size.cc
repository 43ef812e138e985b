#include "lab/pool_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/parse.h"
#include "lab/report.h"

namespace pando::lab {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::string_view kEmbedded = "embedded";

std::string human(std::uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

}  // namespace

Result<std::uint64_t> choose_pool_size(const DataSize& data, std::uint64_t available,
                                       std::uint64_t pools) {
  // An entry's own overhead: versions, pointers, headers, inner nodes.
  const std::uint64_t least = data.bytes() + data.items * 32 + 64 * kMiB;
  const std::uint64_t ample = 2 * data.bytes() + data.items * 96 + 512 * kMiB;
  const std::uint64_t share = available / 10 * 9 / pools / kMiB * kMiB;
  if (least > share) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} keys of {} with values of {} need at least {} in each of {} "
                            "store(s), and this machine has {} for it: take fewer keys, smaller "
                            "values or fewer stores at once",
                            data.items, human(data.key_bytes), human(data.value_bytes),
                            human(least), pools, human(share)));
  }
  return std::min((ample + kMiB - 1) / kMiB * kMiB, share);
}

bool lacks_size(std::string_view pool_url) {
  return pool_url == kEmbedded || pool_url.starts_with("embedded?");
}

std::string with_size(std::string_view pool_url, std::uint64_t bytes) {
  return fmt::format("{}:{}{}", kEmbedded, base::format_size(bytes),
                     pool_url.substr(kEmbedded.size()));
}

}  // namespace pando::lab
