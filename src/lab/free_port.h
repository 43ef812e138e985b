// A port of loopback for a server that cannot be told to choose one itself.
#pragma once

#include <string>

#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::lab {

// Free a moment ago.
inline Result<std::string> free_port() {
  const auto socket = fabric::wire::listen_at({.host = "127.0.0.1", .port = "0", .path = ""});
  if (!socket) return fail(socket.error());
  return std::to_string(fabric::wire::port_of(*socket));
}

}  // namespace pando::lab
