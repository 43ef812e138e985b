#include "lab/node_metrics.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace pando::lab {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kMaxAnswer = 1 << 20;

Result<std::string> get(const fabric::wire::Place& place, std::string_view path,
                        std::chrono::milliseconds time) {
  const auto until = SteadyClock::now() + time;
  const auto late = [&] {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{}: no answer within {} ms", place.to_string(), time.count()));
  };
  const auto wait = [&](const fabric::wire::Socket& socket, short events) {
    return fabric::wire::wait_for(socket.get(), events, until);
  };
  const auto socket = fabric::wire::begin_connect(place);
  if (!socket) return fail(socket.error());
  if (!wait(*socket, POLLOUT)) return late();
  if (Status connected = fabric::wire::connected(*socket, place); !connected) {
    return fail(connected.error());
  }
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", path, place.host);
  auto unsent = std::as_bytes(std::span(request));
  while (!unsent.empty()) {
    const auto sent = socket->send(unsent);
    if (!sent) return fail(ErrorCode::kUnavailable, place.to_string() + " has hung up");
    unsent = unsent.subspan(*sent);
    if (*sent == 0 && !wait(*socket, POLLOUT)) return late();
  }
  std::string answer;
  std::array<std::byte, 4096> part;
  while (const auto count = socket->receive(part)) {
    answer.append(reinterpret_cast<const char*>(part.data()), *count);
    if (answer.size() > kMaxAnswer) break;
    if (*count == 0 && !wait(*socket, POLLIN)) return late();
  }
  return answer;
}

}  // namespace

NodeMetrics parse_metrics(std::string_view text) {
  NodeMetrics metrics;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t space = line.rfind(' ');
    if (line.starts_with('#') || space == std::string_view::npos) continue;
    const std::string_view number = line.substr(space + 1);
    std::uint64_t value = 0;
    const auto [end, problem] =
        std::from_chars(number.data(), number.data() + number.size(), value);
    if (problem != std::errc() || end != number.data() + number.size()) continue;
    metrics.insert_or_assign(std::string(line.substr(0, space)), value);
  }
  return metrics;
}

Result<NodeMetrics> fetch_metrics(const fabric::wire::Place& place,
                                  std::chrono::milliseconds time) {
  Result<std::string> answer = get(place, "/metrics", time);
  if (!answer) return fail(answer.error());
  const std::size_t body = answer->find("\r\n\r\n");
  NodeMetrics metrics;
  if (body != std::string::npos) metrics = parse_metrics(std::string_view(*answer).substr(body));
  if (!metrics.contains("pando_node_memory_bytes")) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: this is not the --http address of a memory node", place.to_string()));
  }
  return metrics;
}

}  // namespace pando::lab
