#include <fmt/format.h>

#include "base/machine_memory.h"
#include "base/parse.h"
#include "pool/compute_node.h"
#include <pando/options.h>

namespace pando {

namespace {

using std::chrono::milliseconds;

// What the header says of beats.
static_assert(pool::ComputeNode::kBeat == milliseconds(10));

Status check_time(std::string_view name, milliseconds value, milliseconds least, milliseconds most,
                  std::string_view too_short, std::string_view too_long) {
  if (value >= least && value <= most) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: {} ms is too {}: {}; it is between {} ms and {} ms", name,
                          value.count(), value < least ? "short" : "long",
                          value < least ? too_short : too_long, least.count(), most.count()));
}

}  // namespace

Status PoolOptions::check() const {
  if (Status valid = check_time("lease", lease, kMinLease, kMaxLease,
                                "compute nodes that are well would be taken for dead",
                                "the locks of a dead compute node would stay locked");
      !valid) {
    return valid;
  }
  if (Status valid = check_time("deadline", deadline, kMinDeadline, kMaxDeadline,
                                "operations would time out before others had their turn",
                                "operations would as good as never end");
      !valid) {
    return valid;
  }
  return base::check_fits("compute_budget", compute_budget, base::machine_memory());
}

Result<IndexOptions> IndexOptions::parse(std::string_view text) {
  IndexOptions options;
  const std::size_t colon = text.find(':');
  options.kind = std::string(text.substr(0, colon));
  if (options.kind.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' names no index kind", text));
  }
  if (colon == std::string_view::npos) return options;
  Result<base::Settings> settings = base::parse_settings(text.substr(colon + 1), ',');
  if (!settings) return fail(settings.error());
  for (auto& [name, value] : *settings) {
    if (name != "keys") {
      options.settings.emplace(std::move(name), std::move(value));
    } else if (value == "bytes" || value == "integer") {
      options.key_type = value == "bytes" ? KeyType::kBytes : KeyType::kInteger;
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("keys={}: must be integer or bytes", value));
    }
  }
  return options;
}

std::string IndexOptions::to_string() const {
  std::string text = kind;
  text += key_type == KeyType::kBytes ? ":keys=bytes" : ":keys=integer";
  for (const auto& [name, value] : settings) text += fmt::format(",{}={}", name, value);
  return text;
}

}  // namespace pando
