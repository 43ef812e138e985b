// ControlLink: a connection for the few requests that wait for their answer: to come in, to have
// memory handed over, to be offered RDMA, to fence a client, to stay, to leave. Blocks, each
// request for no longer than it is told; a fence may also be begun, and its answer be asked for
// later. Not thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <optional>
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
                                  std::chrono::milliseconds time, const TlsContext* tls = nullptr,
                                  Network& network = Network::system());

  const Welcome& welcome() const { return welcome_; }
  const Socket& socket() const { return socket_; }
  // The memory's descriptor, where the purpose was a mapping. Once.
  int take_descriptor() { return std::exchange(descriptor_, -1); }
  ~ControlLink();
  ControlLink(ControlLink&& other) noexcept;
  ControlLink& operator=(ControlLink&& other) noexcept;

  Status fence(ClientId client, std::chrono::milliseconds time);
  Status stay(bool stays, std::chrono::milliseconds time);
  Status leave(std::chrono::milliseconds time);
  // The same without blocking: a number to ask for the answer by, until there is one. The end of
  // the connection is an answer.
  std::uint64_t begin_fence(ClientId client);
  std::optional<Status> answer(std::uint64_t number);
  // A way in by RDMA. REQUIRES: this is the purpose.
  Result<RdmaOffer> ask_for_rdma(std::chrono::milliseconds time);

 private:
  ControlLink(Socket socket, Place place) : socket_(std::move(socket)), place_(std::move(place)) {}
  using Deadline = task::TimePoint;
  Deadline in(std::chrono::milliseconds time) const {
    return socket_.network().clock().now() + time;
  }
  Status send(Bytes bytes, Deadline until);
  // Waits for a message; its body is at the inbox's front until drop().
  Result<Frame> receive(Deadline until);
  Status wait_for(short events, Deadline until);
  // The connection is at its end.
  Error closed() const;
  bool receive_some();
  Status ask(std::uint64_t number, std::chrono::milliseconds time);
  void take_answers();
  void take_answer(const Frame& frame);
  std::span<const std::byte> body(const Frame& frame) const {
    return inbox_.bytes().subspan(sizeof(Frame), frame.bytes);
  }

  Socket socket_;
  Place place_;
  Inbox inbox_;
  Outbox outbox_;
  std::optional<ClientHandshake> handshake_;
  Welcome welcome_;
  int descriptor_ = -1;
  std::uint64_t last_tag_ = 0;
  std::map<std::uint64_t, Status> answers_;  // that nobody has asked for yet
  std::optional<Error> end_;                 // of the connection
};

}  // namespace pando::fabric::wire
