#include "support/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/socket.h"

namespace pando::testing {
namespace {

using fabric::wire::Bytes;
using fabric::wire::Frame;
using fabric::wire::Socket;
using ProxyClock = std::chrono::steady_clock;

// The sides of a connection, or its ways.
constexpr std::array<std::size_t, 2> kZeroAndOne = {0, 1};
constexpr std::uint64_t kWithoutEnd = ~std::uint64_t{0};
// Of one way: whoever sends more finds that the network takes nothing for now.
constexpr std::size_t kMostWaiting = 8 << 20;

// One way of one connection.
struct Stream {
  struct Piece {
    Bytes bytes;
    std::size_t sent = 0;
    ProxyClock::time_point due;
    bool ends_message = false;
  };

  std::deque<Piece> pieces;
  std::size_t waiting = 0;             // bytes
  std::uint64_t passes = kWithoutEnd;  // messages that may go before the rest is held back
  std::chrono::milliseconds delay{0};
  bool ended = false;     // nothing more comes
  bool finished = false;  // and the receiver knows, or is gone
  std::uint64_t messages = 0;

  void take(std::span<const std::byte> bytes, ProxyClock::time_point due);
  void drop() {
    pieces.clear();
    waiting = 0;
  }

 private:
  std::array<std::byte, sizeof(Frame)> head_{};
  std::size_t head_bytes_ = 0;
  std::size_t body_left_ = 0;
};

// Kept in pieces that end where messages do.
void Stream::take(std::span<const std::byte> bytes, ProxyClock::time_point due) {
  waiting += bytes.size();
  if (!pieces.empty()) due = std::max(due, pieces.back().due);
  while (!bytes.empty()) {
    const bool in_head = head_bytes_ < sizeof(Frame);
    const std::size_t some =
        std::min(bytes.size(), in_head ? sizeof(Frame) - head_bytes_ : body_left_);
    if (in_head) {
      std::memcpy(head_.data() + head_bytes_, bytes.data(), some);
      head_bytes_ += some;
      if (head_bytes_ == sizeof(Frame)) {
        Frame frame;
        std::memcpy(&frame, head_.data(), sizeof(frame));
        body_left_ = frame.bytes;
      }
    } else {
      body_left_ -= some;
    }
    if (pieces.empty() || pieces.back().ends_message || pieces.back().due != due) {
      pieces.push_back({.bytes = {}, .due = due});
    }
    Piece& piece = pieces.back();
    piece.bytes.insert(piece.bytes.end(), bytes.begin(),
                       bytes.begin() + static_cast<std::ptrdiff_t>(some));
    bytes = bytes.subspan(some);
    if (head_bytes_ == sizeof(Frame) && body_left_ == 0) {
      piece.ends_message = true;
      ++messages;
      head_bytes_ = 0;
    }
  }
}

void reset(Socket& socket) {
  if (!socket) return;
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket.close();
}

sockaddr_in address_of(std::string_view target) {
  const auto place = fabric::wire::parse_place(target);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (!place || inet_pton(AF_INET, place->host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("not an address as 127.0.0.1:1234: " + std::string(target));
  }
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoul(place->port)));
  return address;
}

Socket new_socket() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw std::runtime_error("no socket for the proxy");
  return socket;
}

// Two sockets may be bound to one port as long as one of them at most listens.
Socket bound_to(sockaddr_in& address) {
  Socket socket = new_socket();
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  socklen_t length = sizeof(address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no port for the proxy");
  }
  return socket;
}

}  // namespace

Proxy::Counts& Proxy::Counts::operator+=(const Counts& other) {
  connections += other.connections;
  refused += other.refused;
  hung += other.hung;
  held += other.held;
  released += other.released;
  delayed += other.delayed;
  ended += other.ended;
  cut += other.cut;
  bytes_up += other.bytes_up;
  bytes_down += other.bytes_down;
  return *this;
}

class Proxy::Loop {
 public:
  explicit Loop(std::string_view target);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Does something between two steps of the thread, which sees it at once.
  template <class Action>
  auto with_lock(const Action& action) {
    const Awake awake(*this);
    return action();
  }
  template <class Question>
  auto ask(const Question& question) const {
    const std::scoped_lock lock(mutex_);
    return question();
  }

  struct Connection {
    std::array<Socket, 2> sides;  // the client's, the node's
    std::array<Stream, 2> ways;   // by Way; from sides[way] to the other

    Stream& stream(Way way) { return ways[static_cast<std::size_t>(way)]; }
    bool gone() const { return !sides[0] && !sides[1]; }
  };

  // REQUIRES of all that follow: with_lock() or ask().
  std::vector<std::unique_ptr<Connection>>& connections() { return connections_; }
  Connection& at(std::size_t connection) { return *connections_.at(connection); }
  bool is_open(const Connection& connection) const {
    return connection.sides[0] && connection.sides[1] && !connection.ways[0].ended &&
           !connection.ways[1].ended;
  }
  void hold(Stream& stream, std::uint64_t after) {
    stream.passes = after;
    ++counts_.held;
  }
  void release(Stream& stream) {
    stream.passes = kWithoutEnd;
    ++counts_.released;
  }
  void delay(Stream& stream, std::chrono::milliseconds time) {
    stream.delay = time;
    if (time.count() > 0) ++counts_.delayed;
  }
  void end(Connection& connection, Way way);
  void cut(Connection& connection, Side side);
  void set_entrance(Entrance entrance);
  void begin_trouble(const Trouble& trouble);
  void end_trouble();

  std::array<std::uint64_t, 2> newcomers_pass = {kWithoutEnd, kWithoutEnd};
  std::string place() const { return "127.0.0.1:" + std::to_string(ntohs(address_.sin_port)); }
  const Counts& counts() const { return counts_; }

 private:
  class Awake {
   public:
    explicit Awake(Loop& loop) : loop_(loop), lock_(loop.mutex_) {}
    ~Awake() {
      const std::uint64_t one = 1;
      (void)!::write(loop_.wakeup_, &one, sizeof(one));
    }

   private:
    Loop& loop_;
    std::scoped_lock<std::mutex> lock_;
  };
  // What trouble held up, to be let go of.
  struct HeldUp {
    ProxyClock::time_point until;
    std::size_t connection;  // kWithoutEnd: the entrance
    Way way;
  };

  void run();
  void listen_again();
  std::vector<pollfd> wanted(ProxyClock::time_point& until);
  void accept_all();
  void receive(Connection& connection, std::size_t way);
  void deliver(Connection& connection, std::size_t way, ProxyClock::time_point now);
  void close_finished(Connection& connection) const;
  void make_trouble(ProxyClock::time_point now);
  void trouble_one(std::size_t number, ProxyClock::time_point now, ProxyClock::time_point until);
  void let_go(const HeldUp& held);

  const sockaddr_in target_;
  sockaddr_in address_ = {};
  Socket reserved_;  // keeps the port while nobody listens at it
  Socket listener_;
  int wakeup_;
  Entrance entrance_ = Entrance::kOpen;
  std::vector<std::unique_ptr<Connection>> connections_;  // all there ever were
  std::vector<Connection*> live_;                         // with a side that is not closed
  // Whose descriptors the thread waits for, behind kOthers others.
  static constexpr std::size_t kOthers = 2;
  std::vector<std::pair<Connection*, std::size_t>> waited_for_;
  Counts counts_;

  std::optional<Trouble> trouble_;
  base::Random random_{1};
  ProxyClock::time_point next_trouble_;
  std::vector<HeldUp> held_up_;

  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::thread thread_;
};

Proxy::Loop::Loop(std::string_view target) : target_(address_of(target)) {
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  reserved_ = bound_to(address_);
  listen_again();
  wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { run(); });
}

Proxy::Loop::~Loop() {
  with_lock([&] { stopping_ = true; });
  thread_.join();
  for (const auto& connection : connections_) cut(*connection, Side::kBoth);
  close(wakeup_);
}

void Proxy::Loop::listen_again() {
  listener_ = bound_to(address_);
  if (listen(listener_.get(), SOMAXCONN) != 0) throw std::runtime_error("the proxy cannot listen");
}

// ---- The thread ----

void Proxy::Loop::run() {
  while (!stopping_) {
    ProxyClock::time_point until = ProxyClock::now() + std::chrono::hours(1);
    std::vector<pollfd> waiting;
    {
      const std::scoped_lock lock(mutex_);
      waiting = wanted(until);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - ProxyClock::now());
    ::poll(waiting.data(), waiting.size(),
           static_cast<int>(std::max<std::int64_t>(0, left.count())));
    std::uint64_t woken = 0;
    (void)!::read(wakeup_, &woken, sizeof(woken));

    const std::scoped_lock lock(mutex_);
    const auto now = ProxyClock::now();
    make_trouble(now);
    if (listener_ && entrance_ == Entrance::kOpen) accept_all();
    for (std::size_t i = 0; i < waited_for_.size(); ++i) {
      if (waiting[kOthers + i].revents != 0) receive(*waited_for_[i].first, waited_for_[i].second);
    }
    for (Connection* const connection : live_) {
      for (const std::size_t way : kZeroAndOne) deliver(*connection, way, now);
      close_finished(*connection);
    }
    std::erase_if(live_, [](const Connection* each) { return each->gone(); });
  }
}

// What to wait for, and at most until when. A socket that is at its end and has nothing to be sent
// is left out: poll would come back at once for ever.
std::vector<pollfd> Proxy::Loop::wanted(ProxyClock::time_point& until) {
  const bool open = entrance_ == Entrance::kOpen;
  std::vector<pollfd> all = {{.fd = wakeup_, .events = POLLIN, .revents = 0},
                             {.fd = open ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
  waited_for_.clear();
  if (trouble_) until = std::min(until, next_trouble_);
  for (const HeldUp& held : held_up_) until = std::min(until, held.until);
  const auto now = ProxyClock::now();
  for (Connection* const connection : live_) {
    for (const std::size_t side : kZeroAndOne) {
      const Stream& from = connection->ways[side];
      const Stream& to = connection->ways[1 - side];
      short events = 0;
      if (!from.ended && from.waiting < kMostWaiting) events |= POLLIN;
      if (!to.pieces.empty() && to.passes > 0) {
        if (to.pieces.front().due <= now) {
          events |= POLLOUT;
        } else {
          until = std::min(until, to.pieces.front().due);
        }
      }
      if (events == 0 || !connection->sides[side]) continue;
      all.push_back({.fd = connection->sides[side].get(), .events = events, .revents = 0});
      waited_for_.emplace_back(connection, side);
    }
  }
  return all;
}

void Proxy::Loop::accept_all() {
  for (;;) {
    Socket client = fabric::wire::accept_from(listener_);
    if (!client) return;
    auto made = std::make_unique<Connection>();
    made->sides = {std::move(client), new_socket()};
    const int yes = 1;
    Socket& node = made->sides[1];
    setsockopt(node.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const bool begun =
        connect(node.get(), reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) == 0 ||
        errno == EINPROGRESS;
    for (const std::size_t way : kZeroAndOne) made->ways[way].passes = newcomers_pass[way];
    ++counts_.connections;
    if (!begun) {
      for (const std::size_t side : kZeroAndOne) {
        reset(made->sides[side]);
        made->ways[side].ended = made->ways[side].finished = true;
      }
    }
    live_.push_back(made.get());
    connections_.push_back(std::move(made));
  }
}

void Proxy::Loop::receive(Connection& connection, std::size_t way) {
  Stream& stream = connection.ways[way];
  const Socket& from = connection.sides[way];
  std::array<std::byte, 64 << 10> bytes;
  while (!stream.ended && stream.waiting < kMostWaiting) {
    const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (fabric::wire::would_block(errno) || errno == ENOTCONN)) return;
    if (got <= 0) {
      stream.ended = true;  // a reset is an end like any other: what it sent before is on its way
      return;
    }
    if (stream.finished) continue;  // nobody is there to get it
    stream.take({bytes.data(), static_cast<std::size_t>(got)}, ProxyClock::now() + stream.delay);
  }
}

void Proxy::Loop::deliver(Connection& connection, std::size_t way, ProxyClock::time_point now) {
  Stream& stream = connection.ways[way];
  if (stream.finished) return;
  const Socket& to = connection.sides[1 - way];
  while (!stream.pieces.empty() && stream.passes > 0 && stream.pieces.front().due <= now) {
    Stream::Piece& piece = stream.pieces.front();
    const ssize_t sent = send(to.get(), piece.bytes.data() + piece.sent,
                              piece.bytes.size() - piece.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (fabric::wire::would_block(errno) || errno == ENOTCONN)) return;
    if (sent < 0) {
      stream.drop();
      stream.finished = true;
      return;
    }
    (way == 0 ? counts_.bytes_up : counts_.bytes_down) += static_cast<std::uint64_t>(sent);
    stream.waiting -= static_cast<std::size_t>(sent);
    piece.sent += static_cast<std::size_t>(sent);
    if (piece.sent < piece.bytes.size()) return;
    if (piece.ends_message && stream.passes != kWithoutEnd) --stream.passes;
    stream.pieces.pop_front();
  }
  if (stream.ended && stream.pieces.empty() && stream.passes > 0) {
    shutdown(to.get(), SHUT_WR);
    stream.finished = true;
  }
}

// A side that can be told nothing more and says nothing more is closed; so is one whose other side
// is gone, once that has been delivered.
void Proxy::Loop::close_finished(Connection& connection) const {
  for (const std::size_t side : kZeroAndOne) {
    const bool says_nothing = connection.ways[side].ended;
    const bool hears_nothing = connection.ways[1 - side].finished;
    if (says_nothing && hears_nothing) connection.sides[side].close();
  }
}

// ---- What a test says ----

void Proxy::Loop::end(Connection& connection, Way way) {
  Stream& stream = connection.stream(way);
  if (stream.ended) return;
  ++counts_.ended;
  stream.ended = true;
}

void Proxy::Loop::cut(Connection& connection, Side side) {
  if (connection.gone()) return;
  ++counts_.cut;
  for (const std::size_t each : kZeroAndOne) {
    if (side != Side::kBoth && static_cast<std::size_t>(side) != each) continue;
    reset(connection.sides[each]);
    connection.ways[each].ended = true;
    connection.ways[1 - each].drop();
    connection.ways[1 - each].finished = true;
  }
}

void Proxy::Loop::set_entrance(Entrance entrance) {
  if (entrance == entrance_) return;
  entrance_ = entrance;
  if (entrance == Entrance::kRefuses) {
    ++counts_.refused;
    // The thread may be waiting for it, and would keep it listening for a moment.
    shutdown(listener_.get(), SHUT_RDWR);
    listener_.close();
    return;
  }
  if (entrance == Entrance::kHangs) ++counts_.hung;
  if (!listener_) listen_again();
}

// ---- Trouble ----

void Proxy::Loop::begin_trouble(const Trouble& trouble) {
  trouble_ = trouble;
  random_ = base::Random(trouble.seed);
  next_trouble_ = ProxyClock::now();
}

void Proxy::Loop::end_trouble() {
  trouble_.reset();
  for (const HeldUp& held : std::exchange(held_up_, {})) let_go(held);
}

void Proxy::Loop::let_go(const HeldUp& held) {
  if (held.connection == kWithoutEnd) {
    set_entrance(Entrance::kOpen);
    return;
  }
  Stream& stream = at(held.connection).stream(held.way);
  delay(stream, {});
  if (stream.passes != kWithoutEnd) release(stream);
}

void Proxy::Loop::make_trouble(ProxyClock::time_point now) {
  std::erase_if(held_up_, [&](const HeldUp& held) {
    if (held.until > now) return false;
    let_go(held);
    return true;
  });
  if (!trouble_ || next_trouble_ > now) return;
  const auto random_time = [&](std::chrono::milliseconds most) {
    return std::chrono::milliseconds(random_.below(static_cast<std::uint64_t>(most.count()) + 1));
  };
  next_trouble_ = now + random_time(2 * trouble_->every);
  const auto until = now + random_time(trouble_->longest);
  const std::uint64_t pick = random_.next();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (is_open(*connections_[i])) open.push_back(i);
  }
  if (!open.empty()) trouble_one(open[pick % open.size()], now, until);
}

void Proxy::Loop::trouble_one(std::size_t number, ProxyClock::time_point now,
                              ProxyClock::time_point until) {
  Connection& connection = at(number);
  const Way way = random_.next() % 2 == 0 ? Way::kUp : Way::kDown;
  switch (random_.below(8)) {
    case 0:
    case 1:
      cut(connection, Side::kBoth);
      break;
    case 2:  // the client is cut off, what it has sent comes late
      hold(connection.stream(Way::kUp), random_.below(3));
      held_up_.push_back({until, number, Way::kUp});
      cut(connection, Side::kClient);
      break;
    case 3:
    case 4:
      hold(connection.stream(way), random_.below(3));
      held_up_.push_back({until, number, way});
      break;
    case 5:
      delay(connection.stream(way), std::chrono::milliseconds(1 + random_.below(5)));
      held_up_.push_back({until, number, way});
      break;
    case 6:
      end(connection, way);
      break;
    default:  // and who comes back meets an entrance that is shut
      cut(connection, Side::kBoth);
      set_entrance(random_.next() % 2 == 0 ? Entrance::kHangs : Entrance::kRefuses);
      held_up_.push_back({now + (until - now) / 10, kWithoutEnd, way});
      break;
  }
}

// ---- Proxy ----

Proxy::Proxy(std::string_view target) : loop_(std::make_unique<Loop>(target)) {}
Proxy::~Proxy() = default;

std::string Proxy::place() const { return loop_->place(); }

Proxy::Counts Proxy::counts() const {
  return loop_->ask([&] { return loop_->counts(); });
}

std::size_t Proxy::connections() const {
  return loop_->ask([&] { return loop_->connections().size(); });
}

bool Proxy::is_open(std::size_t connection) const {
  return loop_->ask([&] { return loop_->is_open(loop_->at(connection)); });
}

std::uint64_t Proxy::messages(std::size_t connection, Way way) const {
  return loop_->ask([&] { return loop_->at(connection).stream(way).messages; });
}

std::size_t Proxy::busiest() const {
  return loop_->ask([&] {
    const auto& all = loop_->connections();
    std::size_t best = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!loop_->is_open(*all[i])) continue;
      if (best == all.size() ||
          all[i]->stream(Way::kUp).messages > all[best]->stream(Way::kUp).messages) {
        best = i;
      }
    }
    return best;
  });
}

std::size_t Proxy::waiting(std::size_t connection, Way way) const {
  return loop_->ask([&] { return loop_->at(connection).stream(way).waiting; });
}

void Proxy::hold(std::size_t connection, Way way, std::uint64_t after) {
  loop_->with_lock([&] { loop_->hold(loop_->at(connection).stream(way), after); });
}

void Proxy::release(std::size_t connection, Way way) {
  loop_->with_lock([&] { loop_->release(loop_->at(connection).stream(way)); });
}

void Proxy::delay(std::size_t connection, Way way, std::chrono::milliseconds time) {
  loop_->with_lock([&] { loop_->delay(loop_->at(connection).stream(way), time); });
}

void Proxy::end(std::size_t connection, Way way) {
  loop_->with_lock([&] { loop_->end(loop_->at(connection), way); });
}

void Proxy::cut(std::size_t connection, Side side) {
  loop_->with_lock([&] { loop_->cut(loop_->at(connection), side); });
}

void Proxy::cut_all() {
  loop_->with_lock([&] {
    for (const auto& each : loop_->connections()) loop_->cut(*each, Side::kBoth);
  });
}

void Proxy::hold_newcomers(Way way, std::uint64_t after) {
  loop_->with_lock([&] { loop_->newcomers_pass[static_cast<std::size_t>(way)] = after; });
}

void Proxy::let_newcomers_pass() {
  loop_->with_lock([&] { loop_->newcomers_pass = {kWithoutEnd, kWithoutEnd}; });
}

void Proxy::set_entrance(Entrance entrance) {
  loop_->with_lock([&] { loop_->set_entrance(entrance); });
}

void Proxy::begin_trouble(const Trouble& trouble) {
  loop_->with_lock([&] { loop_->begin_trouble(trouble); });
}

void Proxy::end_trouble() {
  loop_->with_lock([&] { loop_->end_trouble(); });
}

}  // namespace pando::testing
