#include "fabric/wire/socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <memory>

namespace pando::fabric::wire {

// ---- Connections ----

bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point until) {
  pollfd entry = {.fd = descriptor, .events = events, .revents = 0};
  return Network::system().wait({&entry, 1}, until);
}

void Socket::close() {
  tls_.reset();
  if (descriptor_ >= 0) network_->close(std::exchange(descriptor_, -1));
}

Status Socket::start_tls(const TlsContext& context, TlsRole role) {
  if (network_ != &Network::system()) {
    return fail(ErrorCode::kInvalidArgument, "TLS goes by the system's own sockets alone");
  }
  assert(tls_ == nullptr);
  tls_ = Tls::make(context, role, descriptor_);
  if (tls_ != nullptr) return {};
  return fail(ErrorCode::kUnavailable, "no memory is left for TLS");
}

std::optional<Error> Socket::problem() const {
  return tls_ == nullptr ? std::nullopt : tls_->problem();
}

short Socket::events(short wanted) const { return tls_ == nullptr ? wanted : tls_->events(wanted); }

std::optional<std::size_t> Socket::send(std::span<const std::byte> bytes) const {
  if (tls_ != nullptr) return tls_->send(bytes);
  const ssize_t sent = network_->send(descriptor_, bytes);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block(errno)) return 0;
  return std::nullopt;
}

namespace {

std::optional<std::size_t> received(ssize_t got) {
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && would_block(errno)) return 0;
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> Socket::receive(std::span<std::byte> into) const {
  if (tls_ != nullptr) return tls_->receive(into);
  return received(network_->receive(descriptor_, into, false));
}

std::optional<std::size_t> Socket::peek(std::span<std::byte> into) const {
  return received(network_->receive(descriptor_, into, true));
}

bool Socket::wait_for(short wanted, task::TimePoint until) const {
  pollfd entry = {.fd = descriptor_, .events = events(wanted), .revents = 0};
  return network_->wait({&entry, 1}, until);
}

bool Socket::ended() const {
  std::byte byte;
  return !peek({&byte, 1});
}

void Socket::end_sending() const { network_->end_sending(descriptor_); }

bool Socket::send_with_descriptor(std::span<const std::byte> bytes, int descriptor) const {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
  return sendmsg(descriptor_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::optional<std::size_t> Socket::receive_with_descriptor(std::span<std::byte> into,
                                                           int& descriptor) const {
  descriptor = -1;
  iovec part = {into.data(), into.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC);
  if (got < 0 && would_block(errno)) return 0;
  if (got <= 0) return std::nullopt;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(head), sizeof(int));
  }
  return static_cast<std::size_t>(got);
}

Result<Socket> listen_at(const Place& place, Network& network) {
  Result<int> listener = network.listen(place);
  if (!listener) return fail(listener.error());
  return Socket(*listener, network);
}

std::uint16_t port_of(const Socket& socket) { return socket.network().port_of(socket.get()); }

Result<Socket> begin_connect(const Place& place, const TlsContext* tls, Network& network,
                             task::Worker* worker) {
  Result<int> begun = network.connect(place, worker);
  if (!begun) return fail(begun.error());
  Socket socket(*begun, network);
  if (tls != nullptr && !place.local()) {
    if (Status started = socket.start_tls(*tls, TlsRole::kClient); !started) {
      return fail(started.error());
    }
  }
  return socket;
}

Status connected(const Socket& socket, const Place& place) {
  const int problem = socket.network().connect_problem(socket.get());
  if (problem == 0) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot connect to '{}': {}", place.to_string(), system_reason(problem)));
}

Socket accept_from(const Socket& listener) {
  Network& network = listener.network();
  return Socket(network.accept(listener.get()), network);
}

std::int32_t peer_process(const Socket& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return 0;
  return peer.pid;
}

// ---- Boxes ----

void Inbox::make_room(std::size_t bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (data_.size() - end_ >= bytes) return;
  std::copy(data_.begin() + static_cast<std::ptrdiff_t>(begin_),
            data_.begin() + static_cast<std::ptrdiff_t>(end_), data_.begin());
  end_ -= begin_;
  begin_ = 0;
  if (data_.size() - end_ < bytes) data_.resize(end_ + bytes);
}

bool Inbox::fill(const Socket& socket, std::size_t least) {
  make_room(least);
  const auto got = socket.receive(std::span(data_).subspan(end_));
  if (!got) return false;
  end_ += *got;
  return true;
}

void Inbox::put(std::span<const std::byte> bytes) {
  make_room(bytes.size());
  std::ranges::copy(bytes, data_.begin() + static_cast<std::ptrdiff_t>(end_));
  end_ += bytes.size();
}

void Inbox::drop(std::size_t bytes) {
  begin_ += bytes;
  // What one large message needed is not kept.
  if (begin_ == end_ && data_.size() > 4 * kStep) {
    data_.resize(kStep);
    data_.shrink_to_fit();
    begin_ = end_ = 0;
  }
}

bool Outbox::flush(const Socket& socket) {
  while (waiting() > 0) {
    const auto sent = socket.send(std::span(data_).subspan(sent_));
    if (!sent) return false;
    if (*sent == 0) return true;
    sent_ += *sent;
  }
  constexpr std::size_t kKept = 256 << 10;
  data_.clear();
  sent_ = 0;
  if (data_.capacity() > kKept) data_.shrink_to_fit();
  return true;
}

}  // namespace pando::fabric::wire
