#include "fabric/sim/sockets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace pando::fabric::sim {
namespace {

// What an event of the network's is about, beside its connection (Event::serial).
constexpr std::uint64_t kServerMark = 1;  // its server's side
constexpr std::uint64_t kGiveUp = 2;      // that side has waited for long enough
// After a cut, and for whoever waits for one who is gone: up to so much more of the same.
constexpr Time kRetries = 1;

}  // namespace

SocketCoverage& SocketCoverage::operator+=(const SocketCoverage& other) {
  connections += other.connections;
  segments += other.segments;
  held_segments += other.held_segments;
  hung_connects += other.hung_connects;
  resets += other.resets;
  half_closes += other.half_closes;
  silent_ends += other.silent_ends;
  return *this;
}

// ---- The network ----

SocketNetwork::SocketNetwork(Engine& engine, const SocketOptions& options)
    : engine_(engine), options_(options), random_(options.seed) {}
SocketNetwork::~SocketNetwork() = default;

Machine& SocketNetwork::add_machine(std::string name) {
  machines_.push_back(std::make_unique<Machine>(*this, machines_.size(), std::move(name)));
  return *machines_.back();
}

Machine* SocketNetwork::machine_at(const std::string& name) {
  const auto at = std::ranges::find(machines_, name, [](const auto& each) { return each->name(); });
  return at == machines_.end() ? nullptr : at->get();
}

SocketNetwork::Connection* SocketNetwork::find(std::uint64_t number) {
  const auto at = connections_.find(number);
  return at == connections_.end() ? nullptr : &at->second;
}

SocketNetwork::Between& SocketNetwork::between(const Machine& a, const Machine& b) {
  return between_[std::minmax(a.number(), b.number())];
}

bool SocketNetwork::anything_from(const Machine& machine) const {
  return std::ranges::any_of(connections_, [&](const auto& each) {
    const Connection& connection = each.second;
    return std::ranges::any_of(std::array{Side::kClient, Side::kServer}, [&](Side side) {
      const Way& way = connection.ways[at(side)];
      return connection.ends[at(side)].machine == &machine &&
             ((way.bytes > 0 && !way.lost) || connection.ends[at(other(side))].unread() > 0);
    });
  });
}

SocketNetwork::Connection& SocketNetwork::begin(Machine& client, Machine& server,
                                                const std::string& port, task::Worker* worker) {
  const std::uint64_t number = ++last_number_;
  Connection& connection = connections_[number];
  connection.number = number;
  connection.port = port;
  End& end = connection.ends[at(Side::kClient)];
  end.machine = &client;
  end.descriptor = ++last_descriptor_;
  end.worker = worker;
  connection.ends[at(Side::kServer)].machine = &server;
  connection.ends[at(Side::kServer)].absent = true;
  const Between& link = between(client, server);
  Way& way = connection.ways[at(Side::kClient)];
  if (link.hung_until > engine_.time()) {
    ++coverage_.hung_connects;
    way.lost = true;
  } else if (link.slow_until > engine_.time() && random_.below(2) == 0) {
    way.held_until = engine_.time() + up_to(link.slowest);
  }
  push(connection, Side::kClient, {.kind = Segment::Kind::kConnect});
  return connection;
}

std::size_t SocketNetwork::room(const Connection& connection, Side sender) const {
  const std::size_t used =
      connection.ways[at(sender)].bytes + connection.ends[at(other(sender))].unread();
  return used >= options_.window ? 0 : options_.window - used;
}

std::size_t SocketNetwork::send(Connection& connection, Side side,
                                std::span<const std::byte> bytes) {
  std::size_t count = std::min(bytes.size(), room(connection, side));
  if (count > 1 && chance(options_.cut)) count = 1 + random_.below(count);
  for (std::size_t begin = 0; begin < count;) {
    std::size_t length = count - begin;
    if (length > 1 && chance(options_.cut)) length = 1 + random_.below(length);
    const auto piece = bytes.subspan(begin, length);
    push(connection, side, {.bytes = {piece.begin(), piece.end()}});
    begin += length;
  }
  connection.ends[at(side)].wants_room = count < bytes.size();
  return count;
}

std::size_t SocketNetwork::receive(Connection& connection, Side side, std::span<std::byte> into,
                                   bool peek) {
  End& end = connection.ends[at(side)];
  std::size_t count = std::min(into.size(), end.unread());
  if (!peek && count > 1 && chance(options_.cut / 2)) count = 1 + random_.below(count);
  std::copy_n(end.inbox.begin() + static_cast<std::ptrdiff_t>(end.read), count, into.begin());
  if (peek) return count;
  end.read += count;
  if (end.unread() == 0) {
    end.inbox.clear();
    end.read = 0;
  }
  // Who waits for it hears of what is left, too.
  if (end.unread() > 0 && end.worker != nullptr) {
    engine_.ready_at(end.worker->seat(), engine_.now());
  }
  End& sender = connection.ends[at(other(side))];
  if (std::exchange(sender.wants_room, false)) notify(sender);
  return count;
}

void SocketNetwork::end_sending(Connection& connection, Side side) {
  if (std::exchange(connection.ends[at(side)].end_sent, true)) return;
  push(connection, side, {.kind = Segment::Kind::kEnd});
}

void SocketNetwork::close(Connection& connection, Side side) {
  End& end = connection.ends[at(side)];
  end.descriptor = -1;
  end.worker = nullptr;
  end.closed = true;
  if (connection.ends[at(other(side))].absent) {
    connection.ways[at(side)].lost = true;  // the request never gets there
  } else if (!end.made) {
    push(connection, side, {.kind = Segment::Kind::kReset});
  } else if (end.problem == 0 && end.unread() > 0) {
    push(connection, side, {.kind = Segment::Kind::kReset});
  } else if (end.problem == 0) {
    end_sending(connection, side);
  }
  end.inbox.clear();
  end.read = 0;
  forget_if_over(connection);
}

// The side's machine is gone: no word of it, and nobody there to answer.
void SocketNetwork::vanish(Connection& connection, Side side) {
  End& end = connection.ends[at(side)];
  end.descriptor = -1;
  end.worker = nullptr;
  end.closed = end.gone = true;
  end.inbox.clear();
  end.read = 0;
  // Some of what it sent is under way.
  Way& way = connection.ways[at(side)];
  const std::size_t arrive = random_.below(way.segments.size() + 1);
  while (way.segments.size() > arrive) {
    way.bytes -= way.segments.back().bytes.size();
    way.segments.pop_back();
  }
  give_up_later(connection, other(side),
                engine_.time() + options_.silence + up_to(kRetries * options_.silence));
  forget_if_over(connection);
}

// ---- On the way ----

void SocketNetwork::push(Connection& connection, Side sender, Segment segment) {
  Way& way = connection.ways[at(sender)];
  if (way.lost) return;
  const Time cut_until =
      between(*connection.ends[0].machine, *connection.ends[1].machine).cut_until;
  if (cut_until > engine_.time() && way.held_until < cut_until) {
    way.held_until = cut_until + up_to((cut_until - engine_.time()) * kRetries);
  }
  Time takes = options_.latency + (calm_ ? 0 : up_to(options_.latency));
  if (chance(options_.delay)) {
    takes += up_to(options_.longest_delay);
    ++coverage_.held_segments;
  }
  segment.arrives = std::max(way.last, engine_.time() + takes);
  way.last = segment.arrives;
  way.bytes += segment.bytes.size();
  way.segments.push_back(std::move(segment));
  ++coverage_.segments;
  schedule(connection, sender);
}

void SocketNetwork::schedule(Connection& connection, Side sender) {
  Way& way = connection.ways[at(sender)];
  if (way.segments.empty() || way.lost) return;
  const Time due = std::max(way.segments.front().arrives, way.held_until);
  if (way.event_at != 0 && way.event_at <= due) return;
  way.event_at = due;
  engine_.at(due, {.handler = this,
                   .serial = connection.number,
                   .detail = sender == Side::kServer ? kServerMark : 0});
}

void SocketNetwork::happen(const Event& event) {
  Connection* const connection = find(event.serial);
  if (connection == nullptr) return;
  const Side side = (event.detail & kServerMark) != 0 ? Side::kServer : Side::kClient;
  if ((event.detail & kGiveUp) != 0) {
    fail(*connection, side, ETIMEDOUT);
    forget_if_over(*connection);
  } else if (connection->ways[at(side)].event_at == engine_.time()) {
    deliver(*connection, side);
  }
}

void SocketNetwork::deliver(Connection& connection, Side sender) {
  Way& way = connection.ways[at(sender)];
  way.event_at = 0;
  while (!way.lost && !way.segments.empty() &&
         std::max(way.segments.front().arrives, way.held_until) <= engine_.time()) {
    Segment segment = std::move(way.segments.front());
    way.segments.pop_front();
    way.bytes -= segment.bytes.size();
    arrive(connection, other(sender), std::move(segment));
  }
  schedule(connection, sender);
  forget_if_over(connection);
}

void SocketNetwork::arrive(Connection& connection, Side side, Segment segment) {
  End& end = connection.ends[at(side)];
  using SegmentKind = Segment::Kind;
  if (segment.kind == SegmentKind::kConnect) return arrive_at_listener(connection);
  if (end.gone && end.machine->off()) return;
  if (end.closed || end.problem != 0) {
    // Nobody is there to read it.
    const bool answer = segment.kind == SegmentKind::kBytes && end.problem == 0;
    if (answer) push(connection, side, {.kind = SegmentKind::kReset});
    return;
  }
  switch (segment.kind) {
    case SegmentKind::kAccepted:
      end.made = true;
      break;
    case SegmentKind::kBytes:
      end.inbox.insert(end.inbox.end(), segment.bytes.begin(), segment.bytes.end());
      break;
    case SegmentKind::kEnd:
      end.ended = true;
      break;
    case SegmentKind::kReset:
      if (random_.below(2) == 0) {
        end.inbox.clear();
        end.read = 0;
      }
      return fail(connection, side, end.made ? ECONNRESET : ECONNREFUSED);
    case SegmentKind::kConnect:
      break;
  }
  notify(end);
}

void SocketNetwork::arrive_at_listener(Connection& connection) {
  End& end = connection.ends[at(Side::kServer)];
  Machine& machine = *end.machine;
  end.absent = false;
  if (machine.off()) {
    end.gone = end.closed = true;  // it hangs
    return;
  }
  Machine::Listener* const listener = machine.listener_at(connection.port);
  if (listener == nullptr) {
    end.closed = true;
    push(connection, Side::kServer, {.kind = Segment::Kind::kReset});
    return;
  }
  ++coverage_.connections;
  end.made = true;
  listener->waiting.push_back(connection.number);
  push(connection, Side::kServer, {.kind = Segment::Kind::kAccepted});
  notify(end);
}

// The side hears that the connection is at its end.
void SocketNetwork::fail(Connection& connection, Side side, int problem) {
  End& end = connection.ends[at(side)];
  if (end.closed || end.problem != 0) return;
  end.problem = problem;
  notify(end);
}

void SocketNetwork::give_up_later(Connection& connection, Side side, Time when) {
  engine_.at(when, {.handler = this,
                    .serial = connection.number,
                    .detail = kGiveUp | (side == Side::kServer ? kServerMark : 0)});
}

void SocketNetwork::notify(const End& end) {
  if (end.worker != nullptr) {
    engine_.ready(end.worker->seat());
  } else if (end.machine->listener_) {
    end.machine->listener_();
  }
}

void SocketNetwork::forget_if_over(Connection& connection) {
  const bool over =
      std::ranges::all_of(connection.ends, [](const End& end) { return end.closed || end.absent; });
  const auto still = [](const Way& way) { return way.lost || way.segments.empty(); };
  if (over && std::ranges::all_of(connection.ways, still)) connections_.erase(connection.number);
}

// ---- Faults ----

SocketNetwork::Connection* SocketNetwork::some_connection(const Machine& a, const Machine& b) {
  std::vector<Connection*> found;
  for (auto& [number, each] : connections_) {
    const auto& [client, server] = each.ends;
    const bool joins = (client.machine == &a && server.machine == &b) ||
                       (client.machine == &b && server.machine == &a);
    if (joins && !client.closed && !server.closed) found.push_back(&each);
  }
  return found.empty() ? nullptr : found[random_.below(found.size())];
}

void SocketNetwork::cut(Machine& a, Machine& b, Time time) {
  Between& link = between(a, b);
  link.cut_until = std::max(link.cut_until, engine_.time() + time);
  for (auto& [number, each] : connections_) {
    const auto& [client, server] = each.ends;
    const bool joins = (client.machine == &a && server.machine == &b) ||
                       (client.machine == &b && server.machine == &a);
    if (!joins) continue;
    for (Way& way : each.ways) {
      way.held_until = std::max(way.held_until, link.cut_until + up_to(time * kRetries));
    }
  }
}

bool SocketNetwork::hold_one_way(Machine& a, Machine& b, Time time) {
  Connection* const connection = some_connection(a, b);
  if (connection == nullptr) return false;
  Way& way = connection->ways[random_.below(2)];
  way.held_until = std::max(way.held_until, engine_.time() + time);
  ++coverage_.held_segments;
  return true;
}

bool SocketNetwork::reset(Machine& a, Machine& b) {
  Connection* const connection = some_connection(a, b);
  if (connection == nullptr) return false;
  ++coverage_.resets;
  for (const Side side : {Side::kClient, Side::kServer}) {
    // What is under way comes before it, or never.
    Way& way = connection->ways[at(side)];
    if (random_.below(2) == 0) {
      way.segments.clear();
      way.bytes = 0;
    }
    push(*connection, side, {.kind = Segment::Kind::kReset});
  }
  return true;
}

bool SocketNetwork::half_close(Machine& a, Machine& b) {
  Connection* const connection = some_connection(a, b);
  if (connection == nullptr) return false;
  ++coverage_.half_closes;
  end_sending(*connection, random_.below(2) == 0 ? Side::kClient : Side::kServer);
  return true;
}

bool SocketNetwork::end_silently(Machine& a, Machine& b, Time time) {
  Connection* const connection = some_connection(a, b);
  if (connection == nullptr) return false;
  ++coverage_.silent_ends;
  for (const Side side : {Side::kClient, Side::kServer}) {
    connection->ways[at(side)].lost = true;
    give_up_later(*connection, side, engine_.time() + up_to(time));
  }
  return true;
}

void SocketNetwork::hang_connects(Machine& a, Machine& b, Time time) {
  Between& link = between(a, b);
  link.hung_until = std::max(link.hung_until, engine_.time() + time);
}

void SocketNetwork::slow_connects(Machine& a, Machine& b, Time time, Time longest) {
  Between& link = between(a, b);
  link.slow_until = std::max(link.slow_until, engine_.time() + time);
  link.slowest = longest;
}

// ---- Waiting for many ----

class Machine::MachineWaiter final : public wire::Waiter {
 public:
  explicit MachineWaiter(Machine& machine) : machine_(machine) {
    machine_.waiters_.push_back(this);
  }
  ~MachineWaiter() override { std::erase(machine_.waiters_, this); }
  MachineWaiter(const MachineWaiter&) = delete;
  MachineWaiter& operator=(const MachineWaiter&) = delete;

  void add(int descriptor, short events) override { watched_[descriptor] = events; }
  void change(int descriptor, short events) override { watched_[descriptor] = events; }
  void remove(int descriptor) override { watched_.erase(descriptor); }
  // Who drives it asks when there is something: it never waits.
  std::span<const int> wait(std::optional<task::Duration> /*most*/) override {
    ready_.clear();
    for (const auto& [descriptor, events] : watched_) {
      if (is_ready(descriptor, events)) ready_.push_back(descriptor);
    }
    // In any order.
    for (std::size_t i = ready_.size(); i > 1; --i) {
      std::swap(ready_[i - 1], ready_[machine_.network_.random_.below(i)]);
    }
    return ready_;
  }
  void wake() override {}

  bool any_ready() const {
    return std::ranges::any_of(
        watched_, [this](const auto& each) { return is_ready(each.first, each.second); });
  }

 private:
  // The end of a connection is an event whatever is waited for.
  bool is_ready(int descriptor, short events) const {
    return (machine_.events_of(descriptor) & (events | POLLERR)) != 0;
  }

  Machine& machine_;
  std::map<int, short> watched_;
  std::vector<int> ready_;
};

Result<std::unique_ptr<wire::Waiter>> Machine::make_waiter() {
  return std::make_unique<MachineWaiter>(*this);
}

bool Machine::any_ready() const {
  return std::ranges::any_of(waiters_, [](const MachineWaiter* each) { return each->any_ready(); });
}

short Machine::events_of(int descriptor) const {
  if (const auto at = listeners_.find(descriptor); at != listeners_.end()) {
    return at->second.waiting.empty() ? 0 : POLLIN;
  }
  const auto [connection, side] = find(descriptor);
  if (connection == nullptr) return POLLIN | POLLOUT | POLLERR;
  const auto& end = connection->ends[SocketNetwork::at(side)];
  if (end.problem != 0) return POLLIN | POLLOUT | POLLERR;
  const bool readable = end.unread() > 0 || end.ended;
  const bool writable = end.made && (end.end_sent || network_.room(*connection, side) > 0);
  return static_cast<short>((readable ? POLLIN : 0) | (writable ? POLLOUT : 0));
}

bool Machine::wait(std::span<pollfd> sockets, task::TimePoint until, task::Worker* resting) {
  Engine& engine = network_.engine();
  if (engine.in_task()) {
    throw std::logic_error("a call that blocks from within a simulated task");
  }
  const bool rests = resting != nullptr && !held_;
  if (rests) engine.hold(resting->seat());
  const bool ready = engine.run_until(
      [&] {
        return std::ranges::any_of(sockets, [this](const pollfd& each) {
          return (events_of(each.fd) & (each.events | POLLERR)) != 0;
        });
      },
      static_cast<Time>(until.time_since_epoch().count()) * kNanosecond);
  if (rests && !held_) engine.release(resting->seat());
  return ready;
}

// ---- Sockets of a machine ----

std::pair<SocketNetwork::Connection*, Side> Machine::find(int descriptor) const {
  const auto at = sockets_.find(descriptor);
  if (at == sockets_.end()) return {nullptr, Side::kClient};
  return {network_.find(at->second.connection), at->second.side};
}

Machine::Listener* Machine::listener_at(const std::string& port) {
  for (auto& [descriptor, each] : listeners_) {
    if (each.port == port) return &each;
  }
  return nullptr;
}

Result<int> Machine::listen(const wire::Place& place) {
  const int descriptor = ++network_.last_descriptor_;
  listeners_[descriptor].port = place.port;
  return descriptor;
}

std::uint16_t Machine::port_of(int listener) {
  const auto at = listeners_.find(listener);
  return at == listeners_.end() ? 0 : static_cast<std::uint16_t>(std::stoul(at->second.port));
}

int Machine::accept(int listener) {
  const auto at = listeners_.find(listener);
  if (at == listeners_.end() || at->second.waiting.empty()) {
    errno = EAGAIN;
    return -1;
  }
  const std::uint64_t number = at->second.waiting.front();
  at->second.waiting.pop_front();
  SocketNetwork::Connection& connection = *network_.find(number);
  const int descriptor = ++network_.last_descriptor_;
  connection.ends[SocketNetwork::at(Side::kServer)].descriptor = descriptor;
  sockets_[descriptor] = {.connection = number, .side = Side::kServer};
  return descriptor;
}

Result<int> Machine::connect(const wire::Place& place, task::Worker* worker) {
  Machine* const server = network_.machine_at(place.host);
  if (server == nullptr || off_) {
    return pando::fail(ErrorCode::kUnavailable,
                       fmt::format("cannot connect to '{}': {}", place.to_string(),
                                   off_ ? "this machine is off" : "there is no such machine"));
  }
  SocketNetwork::Connection& connection = network_.begin(*this, *server, place.port, worker);
  const int descriptor = connection.ends[SocketNetwork::at(Side::kClient)].descriptor;
  sockets_[descriptor] = {.connection = connection.number, .side = Side::kClient};
  return descriptor;
}

int Machine::connect_problem(int descriptor) {
  const auto [connection, side] = find(descriptor);
  return connection == nullptr ? ECONNRESET : connection->ends[SocketNetwork::at(side)].problem;
}

void Machine::close(int descriptor) {
  if (const auto at = listeners_.find(descriptor); at != listeners_.end()) {
    for (const std::uint64_t number : at->second.waiting) {
      SocketNetwork::Connection& connection = *network_.find(number);
      network_.push(connection, Side::kServer, {.kind = SocketNetwork::Segment::Kind::kReset});
      connection.ends[SocketNetwork::at(Side::kServer)].closed = true;
      network_.forget_if_over(connection);
    }
    listeners_.erase(at);
    return;
  }
  const auto [connection, side] = find(descriptor);
  sockets_.erase(descriptor);
  if (connection != nullptr) network_.close(*connection, side);
}

ssize_t Machine::send(int descriptor, std::span<const std::byte> bytes) {
  const auto [connection, side] = find(descriptor);
  errno = ECONNRESET;
  if (connection == nullptr) return -1;
  auto& end = connection->ends[SocketNetwork::at(side)];
  errno = end.problem != 0 ? end.problem : EPIPE;
  if (end.problem != 0 || end.end_sent) return -1;
  errno = EAGAIN;
  if (!end.made) return -1;
  const std::size_t sent = network_.send(*connection, side, bytes);
  if (sent == 0) return -1;
  if (!triggers_.empty()) pull_triggers(bytes.size());
  return static_cast<ssize_t>(sent);
}

ssize_t Machine::receive(int descriptor, std::span<std::byte> into, bool peek) {
  const auto [connection, side] = find(descriptor);
  errno = ECONNRESET;
  if (connection == nullptr) return -1;
  const auto& end = connection->ends[SocketNetwork::at(side)];
  if (end.unread() > 0) {
    return static_cast<ssize_t>(network_.receive(*connection, side, into, peek));
  }
  errno = end.problem != 0 ? end.problem : EAGAIN;
  return end.problem == 0 && end.ended ? 0 : -1;
}

void Machine::end_sending(int descriptor) {
  const auto [connection, side] = find(descriptor);
  if (connection != nullptr) network_.end_sending(*connection, side);
}

// ---- Ends of machines ----

void Machine::kill_process() {
  while (!sockets_.empty()) close(sockets_.begin()->first);
  while (!listeners_.empty()) close(listeners_.begin()->first);
}

void Machine::switch_off() {
  off_ = true;
  for (const auto& [descriptor, socket] : std::exchange(sockets_, {})) {
    if (auto* const connection = network_.find(socket.connection)) {
      network_.vanish(*connection, socket.side);
    }
  }
  for (const auto& [descriptor, listener] : std::exchange(listeners_, {})) {
    for (const std::uint64_t number : listener.waiting) {
      if (auto* const connection = network_.find(number)) {
        network_.vanish(*connection, Side::kServer);
      }
    }
  }
}

void Machine::die(bool silently) {
  if (silently) return switch_off();
  kill_process();
  off_ = true;
}

void Machine::hold() {
  held_ = true;
  for (const Seat seat : seats_) network_.engine().hold(seat);
}

void Machine::release() {
  held_ = false;
  for (const Seat seat : seats_) network_.engine().release(seat);
}

task::Simulator::Seat Machine::join(task::Worker& worker) {
  const Seat seat = network_.engine().join(worker);
  seats_.push_back(seat);
  if (held_) network_.engine().hold(seat);
  return seat;
}

void Machine::leave(Seat seat) {
  std::erase(seats_, seat);
  network_.engine().leave(seat);
}

void Machine::after_sends(std::uint64_t count, std::size_t least, std::function<void()> action) {
  triggers_.push_back({count, least, std::move(action)});
}

// They happen when whoever sends has had his turn.
void Machine::pull_triggers(std::size_t bytes) {
  for (Trigger& trigger : triggers_) {
    if (bytes < trigger.least || --trigger.left > 0) continue;
    network_.engine().at(network_.engine().time(), std::move(trigger.action));
  }
  std::erase_if(triggers_, [](const Trigger& trigger) { return trigger.left == 0; });
}

}  // namespace pando::fabric::sim
