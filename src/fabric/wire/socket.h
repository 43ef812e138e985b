// Sockets: stream connections by TCP or within the machine, non-blocking. What they need of the
// machine is its Network's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "fabric/wire/messages.h"
#include "fabric/wire/network.h"
#include "fabric/wire/place.h"
#include "fabric/wire/tls.h"
#include <pando/result.h>

namespace pando::fabric::wire {

class Socket {
 public:
  Socket() = default;
  // The network outlives it.
  explicit Socket(int descriptor, Network& network = Network::system())
      : network_(&network), descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : network_(other.network_),
        descriptor_(std::exchange(other.descriptor_, -1)),
        tls_(std::move(other.tls_)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(network_, other.network_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(tls_, other.tls_);
    return *this;
  }
  ~Socket() { close(); }

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  Network& network() const { return *network_; }
  void close();

  // From now on all bytes go by TLS. REQUIRES: a connection by TCP, and none were sent or received.
  // The context outlives it. An error where the system has no memory.
  Status start_tls(const TlsContext& context, TlsRole role);
  // Why the connection is at its end, where TLS is the reason (tls.h).
  std::optional<Error> problem() const;

  // Bytes moved; 0 where it would block; nullopt where the connection is at its end. With TLS,
  // bytes that were not sent are to be given again, and Tls::kBuffer bytes are to be received into.
  std::optional<std::size_t> send(std::span<const std::byte> bytes) const;
  std::optional<std::size_t> receive(std::span<std::byte> into) const;
  // What to wait for (events of poll) until what is wanted can be done: with TLS, the one may need
  // the other.
  short events(short wanted) const;
  // Waits until what is wanted (of poll) can be done. False: it is late.
  bool wait_for(short wanted, task::TimePoint until) const;
  // As receive(), but the bytes stay. Without TLS.
  std::optional<std::size_t> peek(std::span<std::byte> into) const;
  // The other side has ended the connection, and nothing that it sent is left to receive.
  bool ended() const;
  // The other side sees the end; what it sends can still be received.
  void end_sending() const;
  // The bytes, and a descriptor with the first of them, over a Unix socket. False: at its end.
  bool send_with_descriptor(std::span<const std::byte> bytes, int descriptor) const;
  // The same, received: the descriptor is -1 where none came.
  std::optional<std::size_t> receive_with_descriptor(std::span<std::byte> into,
                                                     int& descriptor) const;

 private:
  Network* network_ = nullptr;
  int descriptor_ = -1;
  std::unique_ptr<Tls> tls_;
};

// Waits for one of the events (of poll) of the system's descriptor, signals or not. False: it is
// late.
bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point until);

Result<Socket> listen_at(const Place& place, Network& network = Network::system());
// The port that a listening socket was given where 0 was asked for.
std::uint16_t port_of(const Socket& socket);
// Begins to connect; the connection is made, or has failed, once it can be written to. By TLS where
// a context is given, unless by a Unix socket. An error where the host is unknown. `worker`: as
// Network::connect() has it.
Result<Socket> begin_connect(const Place& place, const TlsContext* tls = nullptr,
                             Network& network = Network::system(), task::Worker* worker = nullptr);
// How connecting ended. REQUIRES: the socket can be written to.
Status connected(const Socket& socket, const Place& place);
// The next connection that waits; none where none does.
Socket accept_from(const Socket& listener);
// The process at the other end of a Unix socket.
std::int32_t peer_process(const Socket& socket);

// Bytes that come in, taken from the front as they are understood.
class Inbox {
 public:
  // Receives what there is, up to the free space (at least `least` bytes of it). False: the
  // connection is at its end.
  bool fill(const Socket& socket, std::size_t least = kStep);
  // Bytes that were received otherwise.
  void put(std::span<const std::byte> bytes);
  std::span<const std::byte> bytes() const { return {data_.data() + begin_, end_ - begin_}; }
  void drop(std::size_t bytes);
  std::size_t memory() const { return data_.size(); }

 private:
  static constexpr std::size_t kStep = 64 << 10;
  static_assert(kStep >= Tls::kBuffer);
  void make_room(std::size_t bytes);

  Bytes data_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// Bytes on their way out.
class Outbox {
 public:
  Bytes& bytes() { return data_; }  // to append to
  std::size_t waiting() const { return data_.size() - sent_; }
  // Sends what the connection takes. False: it is at its end.
  bool flush(const Socket& socket);
  std::size_t memory() const { return data_.capacity(); }

 private:
  Bytes data_;
  std::size_t sent_ = 0;
};

}  // namespace pando::fabric::wire
