#include "fabric/wire/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/parse.h"

namespace pando::fabric::wire {
namespace {

struct AddressList {
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
};

Status resolve(const Place& place, bool to_listen, AddressList& list) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  const char* const host = place.host.empty() ? nullptr : place.host.c_str();
  const int problem = getaddrinfo(host, place.port.c_str(), &hints, &list.first);
  if (problem == 0) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("'{}' is no address: {}", place.to_string(), gai_strerror(problem)));
}

sockaddr_un local_address(const Place& place) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, place.path.data(),
              std::min(place.path.size(), sizeof(address.sun_path) - 1));
  return address;
}

void set_option(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof(value));
}

constexpr int kFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

Result<Socket> listen_locally(const Place& place) {
  const sockaddr_un address = local_address(place);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  // A socket file that a dead process left behind refuses connections, and may be replaced.
  Socket probe(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  struct stat status = {};
  if (stat(address.sun_path, &status) == 0 && S_ISSOCK(status.st_mode) &&
      connect(probe.get(), generic, sizeof(address)) != 0 && errno == ECONNREFUSED) {
    unlink(address.sun_path);
  }
  const mode_t mask = umask(0117);  // for the owner and the group
  const int bound = bind(socket.get(), generic, sizeof(address));
  const int problem = errno;
  umask(mask);
  if (bound == 0 && listen(socket.get(), SOMAXCONN) == 0) return socket;
  return fail(ErrorCode::kUnavailable, fmt::format("cannot listen at '{}': {}", place.to_string(),
                                                   system_reason(bound == 0 ? errno : problem)));
}

}  // namespace

bool would_block(int problem) {
  return problem == EAGAIN || problem == EWOULDBLOCK || problem == EINTR;
}

std::string system_reason(int problem) { return std::generic_category().message(problem); }

// ---- Places ----

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

// ---- Connections ----

bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd entry = {.fd = descriptor, .events = events, .revents = 0};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::max(left, std::chrono::milliseconds(0)).count()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

void Socket::close() {
  tls_.reset();
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Status Socket::start_tls(const TlsContext& context, TlsRole role) {
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
  const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (would_block(errno)) return 0;
  return std::nullopt;
}

namespace {

std::optional<std::size_t> receive_from(int descriptor, std::span<std::byte> into, int flags) {
  const ssize_t got = recv(descriptor, into.data(), into.size(), flags);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && would_block(errno)) return 0;
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> Socket::receive(std::span<std::byte> into) const {
  if (tls_ != nullptr) return tls_->receive(into);
  return receive_from(descriptor_, into, 0);
}

std::optional<std::size_t> Socket::peek(std::span<std::byte> into) const {
  return receive_from(descriptor_, into, MSG_PEEK | MSG_DONTWAIT);
}

bool Socket::ended() const {
  std::byte byte;
  return !peek({&byte, 1});
}

void Socket::end_sending() const { shutdown(descriptor_, SHUT_WR); }

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

Result<Socket> listen_at(const Place& place) {
  if (place.local()) return listen_locally(place);
  AddressList list;
  if (Status known = resolve(place, true, list); !known) return fail(known.error());
  int problem = 0;
  for (const addrinfo* each = list.first; each != nullptr; each = each->ai_next) {
    Socket socket(::socket(each->ai_family, SOCK_STREAM | kFlags, 0));
    if (!socket) continue;
    set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    problem = errno;
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot listen at '{}': {}{}", place.to_string(), system_reason(problem),
                          problem == EADDRINUSE ? "; choose another port" : ""));
}

std::uint16_t port_of(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

Result<Socket> begin_connect(const Place& place, const TlsContext* tls) {
  const auto begun = [&](Socket socket, const sockaddr* address,
                         socklen_t length) -> Result<Socket> {
    if (connect(socket.get(), address, length) == 0 || errno == EINPROGRESS || errno == EAGAIN) {
      return socket;
    }
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot connect to '{}': {}", place.to_string(), system_reason(errno)));
  };
  if (place.local()) {
    const sockaddr_un address = local_address(place);
    return begun(Socket(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0)),
                 reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  AddressList list;
  if (Status known = resolve(place, false, list); !known) return fail(known.error());
  Socket socket(::socket(list.first->ai_family, SOCK_STREAM | kFlags, 0));
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (tls != nullptr) {
    if (Status started = socket.start_tls(*tls, TlsRole::kClient); !started) {
      return fail(started.error());
    }
  }
  return begun(std::move(socket), list.first->ai_addr, list.first->ai_addrlen);
}

Status connected(const Socket& socket, const Place& place) {
  int problem = 0;
  socklen_t length = sizeof(problem);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
  if (problem == 0) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot connect to '{}': {}", place.to_string(), system_reason(problem)));
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.get(), nullptr, nullptr, kFlags));
  if (socket) set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);  // no matter on Unix sockets
  return socket;
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
