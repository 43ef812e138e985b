// Place: where to listen or connect.
#pragma once

#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::fabric::wire {

// Where to listen or connect: "HOST:PORT", "[V6]:PORT" or "unix:PATH". "tcp://" may stand in front.
struct Place {
  std::string host;  // empty: every address of the machine, where it is listened to
  std::string port;
  std::string path;  // of a Unix socket, instead of host and port

  bool local() const { return !path.empty(); }
  std::string to_string() const;
};
Result<Place> parse_place(std::string_view text);

}  // namespace pando::fabric::wire
