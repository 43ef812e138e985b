// ControlLink: a connection for the few requests that wait for their answer: to come in, to have
// memory handed over, to be shown a door, to fence a client, to leave. Blocks, each request for no
// longer than it is told. Not thread-safe.
#pragma once

#include <chrono>
#include <string>

#include "fabric/wire/handshake.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::wire {

class ControlLink {
 public:
  // Connects (begin_connect) and comes in. kUnavailable where nobody answers in time.
  static Result<ControlLink> open(const Place& place, const std::string& key,
                                  std::string_view cluster, const Proof& wanted,
                                  std::chrono::milliseconds time, const TlsContext* tls = nullptr);

  const Welcome& welcome() const { return welcome_; }
  const Socket& socket() const { return socket_; }
  // The memory's descriptor, where the purpose was a mapping. Once.
  int take_descriptor() { return std::exchange(descriptor_, -1); }
  ~ControlLink();
  ControlLink(ControlLink&& other) noexcept;
  ControlLink& operator=(ControlLink&& other) noexcept;

  Status fence(ClientId client, std::chrono::milliseconds time);
  Status leave(std::chrono::milliseconds time);
  // A way in by RDMA. REQUIRES: this is the purpose.
  Result<Door> enter(std::chrono::milliseconds time);

 private:
  ControlLink(Socket socket, Place place) : socket_(std::move(socket)), place_(std::move(place)) {}
  using Deadline = std::chrono::steady_clock::time_point;
  Status send(Bytes bytes, Deadline until);
  // Waits for a message; its body is at the inbox's front until drop().
  Result<Frame> receive(Deadline until);
  Status wait_for(short events, Deadline until);
  // The connection is at its end.
  Error closed() const;
  Status ask(Bytes request, std::uint64_t tag, std::chrono::milliseconds time);
  std::span<const std::byte> body(const Frame& frame) const {
    return inbox_.bytes().subspan(sizeof(Frame), frame.bytes);
  }

  Socket socket_;
  Place place_;
  Inbox inbox_;
  Welcome welcome_;
  int descriptor_ = -1;
  std::uint64_t last_tag_ = 0;
};

}  // namespace pando::fabric::wire
