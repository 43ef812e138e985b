// What a memory node's /metrics say.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::lab {

// Name and labels as they stand there, such as pando_node_verbs_total{kind="read"}.
using NodeMetrics = std::map<std::string, std::uint64_t, std::less<>>;

// Lines that are no counter are left out.
NodeMetrics parse_metrics(std::string_view text);

// kUnavailable where nobody answers in time; kCorrupt where it is not a memory node.
Result<NodeMetrics> fetch_metrics(const fabric::wire::Place& place, std::chrono::milliseconds time);

}  // namespace pando::lab
