#include "fabric/wire/place.h"

#include <fmt/format.h>
#include <sys/un.h>

#include "base/parse.h"

namespace pando::fabric::wire {

std::string Place::to_string() const {
  if (local()) return "unix:" + path;
  return host.contains(':') ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<Place> parse_place(std::string_view text) {
  const std::string_view whole = text;
  Place place;
  if (text.starts_with("unix:")) {
    text.remove_prefix(5);
    if (text.starts_with("//")) text.remove_prefix(2);
    place.path = text;
    if (text.empty() || text.size() >= sizeof(sockaddr_un::sun_path)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': the path must have 1 to {} bytes", whole,
                              sizeof(sockaddr_un::sun_path) - 1));
    }
    return place;
  }
  if (text.starts_with("tcp://")) text.remove_prefix(6);
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no address; it is HOST:PORT or unix:PATH", whole));
  }
  place.host = text.substr(0, colon);
  place.port = text.substr(colon + 1);
  if (place.host.starts_with('[') && place.host.ends_with(']')) {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  auto port = base::parse_unsigned(fmt::format("port of '{}'", whole), place.port, 0, 65535);
  if (!port) return fail(port.error());
  return place;
}

}  // namespace pando::fabric::wire
