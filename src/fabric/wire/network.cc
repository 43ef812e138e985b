#include "fabric/wire/network.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

namespace pando::fabric::wire {

bool would_block(int problem) {
  return problem == EAGAIN || problem == EWOULDBLOCK || problem == EINTR;
}

std::string system_reason(int problem) { return std::generic_category().message(problem); }

namespace {

// Closed, unless released.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

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

Result<int> listen_locally(const Place& place) {
  const sockaddr_un address = local_address(place);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  // A socket file that a dead process left behind refuses connections, and may be replaced.
  const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0));
  struct stat status = {};
  if (stat(address.sun_path, &status) == 0 && S_ISSOCK(status.st_mode) &&
      ::connect(probe.get(), generic, sizeof(address)) != 0 && errno == ECONNREFUSED) {
    unlink(address.sun_path);
  }
  const mode_t mask = umask(0117);  // for the owner and the group
  const int bound = bind(socket.get(), generic, sizeof(address));
  const int problem = errno;
  umask(mask);
  if (bound == 0 && listen(socket.get(), SOMAXCONN) == 0) return socket.release();
  return fail(ErrorCode::kUnavailable, fmt::format("cannot listen at '{}': {}", place.to_string(),
                                                   system_reason(bound == 0 ? errno : problem)));
}

// ---- Connections ----

// Whoever is gone without a word is found out: a client whose machine lost its power would be
// remembered for ever.
void keep_alive(int descriptor) {
  constexpr int kIdle = 10;  // seconds
  constexpr int kBetween = 5;
  constexpr int kProbes = 3;
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kBetween);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

Result<int> begin(Descriptor socket, const Place& place, const sockaddr* address,
                  socklen_t length) {
  if (::connect(socket.get(), address, length) == 0 || errno == EINPROGRESS || errno == EAGAIN) {
    return socket.release();
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot connect to '{}': {}", place.to_string(), system_reason(errno)));
}

// ---- The system's ----

static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

class EpollWaiter final : public Waiter {
 public:
  EpollWaiter()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (is_open()) add(wakeup_.get(), POLLIN);
  }

  bool is_open() const { return epoll_.get() >= 0 && wakeup_.get() >= 0; }
  void add(int descriptor, short events) override { control(EPOLL_CTL_ADD, descriptor, events); }
  void change(int descriptor, short events) override { control(EPOLL_CTL_MOD, descriptor, events); }
  void remove(int descriptor) override { control(EPOLL_CTL_DEL, descriptor, 0); }

  std::span<const int> wait(std::optional<task::Duration> most) override {
    int milliseconds = -1;
    if (most) {
      milliseconds = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*most).count());
    }
    const int count =
        epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds);
    std::size_t found = 0;
    for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(count); ++i) {
      if (events_[i].data.fd != wakeup_.get()) ready_[found++] = events_[i].data.fd;
    }
    return std::span(ready_).first(found);
  }

  void wake() override {
    const std::uint64_t one = 1;
    (void)!write(wakeup_.get(), &one, sizeof(one));
  }

 private:
  void control(int operation, int descriptor, short events) {
    epoll_event event = {.events = static_cast<std::uint32_t>(events), .data = {.fd = descriptor}};
    epoll_ctl(epoll_.get(), operation, descriptor, &event);
  }

  Descriptor epoll_;
  Descriptor wakeup_;
  std::array<epoll_event, 64> events_;
  std::array<int, 64> ready_;
};

class SystemNetwork final : public Network {
 public:
  task::Clock& clock() override { return task::Clock::system(); }
  Result<int> listen(const Place& place) override;
  std::uint16_t port_of(int listener) override;
  Result<int> connect(const Place& place, task::Worker* worker) override;

  int accept(int listener) override {
    const int descriptor = accept4(listener, nullptr, nullptr, kFlags);
    if (descriptor < 0) return descriptor;
    set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);  // no matter on Unix sockets
    keep_alive(descriptor);
    return descriptor;
  }
  int connect_problem(int descriptor) override {
    int problem = 0;
    socklen_t length = sizeof(problem);
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &problem, &length);
    return problem;
  }
  void close(int descriptor) override { ::close(descriptor); }

  ssize_t send(int descriptor, std::span<const std::byte> bytes) override {
    return ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  ssize_t receive(int descriptor, std::span<std::byte> into, bool peek) override {
    return recv(descriptor, into.data(), into.size(), peek ? MSG_PEEK | MSG_DONTWAIT : 0);
  }
  void end_sending(int descriptor) override { shutdown(descriptor, SHUT_WR); }

  bool wait(std::span<pollfd> sockets, task::TimePoint until, task::Worker* /*resting*/) override {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock().now());
      const int ready = poll(sockets.data(), sockets.size(),
                             static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
      if (ready > 0) return true;
      if (ready == 0 || errno != EINTR) return false;
    }
  }
  Result<std::unique_ptr<Waiter>> make_waiter() override {
    auto waiter = std::make_unique<EpollWaiter>();
    if (waiter->is_open()) return waiter;
    return fail(ErrorCode::kUnavailable,
                fmt::format("the system gives no descriptors: {}", system_reason(errno)));
  }
};

Result<int> SystemNetwork::listen(const Place& place) {
  if (place.local()) return listen_locally(place);
  AddressList list;
  if (Status known = resolve(place, true, list); !known) return fail(known.error());
  int problem = 0;
  for (const addrinfo* each = list.first; each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, SOCK_STREAM | kFlags, 0));
    if (socket.get() < 0) continue;
    set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket.release();
    }
    problem = errno;
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot listen at '{}': {}{}", place.to_string(), system_reason(problem),
                          problem == EADDRINUSE ? "; choose another port" : ""));
}

std::uint16_t SystemNetwork::port_of(int listener) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

Result<int> SystemNetwork::connect(const Place& place, task::Worker* /*worker*/) {
  if (place.local()) {
    const sockaddr_un address = local_address(place);
    return begin(Descriptor(::socket(AF_UNIX, SOCK_STREAM | kFlags, 0)), place,
                 reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  AddressList list;
  if (Status known = resolve(place, false, list); !known) return fail(known.error());
  Descriptor socket(::socket(list.first->ai_family, SOCK_STREAM | kFlags, 0));
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return begin(std::move(socket), place, list.first->ai_addr, list.first->ai_addrlen);
}

}  // namespace

Network& Network::system() {
  // Never destroyed: sockets may outlive main().
  static SystemNetwork& network = *new SystemNetwork;
  return network;
}

}  // namespace pando::fabric::wire
