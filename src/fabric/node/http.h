// The few lines of HTTP that a memory node speaks: GET /metrics (Prometheus' text) and /health.
#pragma once

#include <string>
#include <string_view>

#include "fabric/node/memory.h"
#include "fabric/node/server.h"

namespace pando::fabric::node {

// A request is at its end once it holds an empty line.
inline constexpr std::size_t kMaxHttpRequest = 8 << 10;

std::string answer_http(std::string_view request, const NodeMemory& memory,
                        const ServerCounts& counts);

}  // namespace pando::fabric::node
