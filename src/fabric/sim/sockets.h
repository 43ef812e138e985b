// Simulated sockets: machines, stream connections between them, and what may become of those. The
// real tcp client and the real memory-node server run on it, in simulated time and on one thread.
//
// A connection is two ways, one for each side's bytes. Bytes travel in segments, which arrive in
// order, each at a time of its own: whole, or cut anywhere; at once, or held up while those of
// other connections, and of the other way, go on. A way takes so many bytes that are not read yet,
// and no more. As with TCP,
//  - who closes a socket ends its way (FIN), and what it sent before still arrives; bytes that come
//    for a socket that is closed, or are unread when it is closed, are answered by a reset;
//  - a reset ends both ways; what was not read by then may be lost or not;
//  - a machine that goes without a word is noticed only by those who wait for long enough.
//
// One thread uses all of it. The same calls give the same run: whatever is drawn comes from one
// seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/sim/engine.h"
#include "fabric/wire/network.h"
#include <pando/result.h>

namespace pando::fabric::sim {

// How rough the way is. Chances in percent.
struct SocketOptions {
  std::uint64_t seed = 1;
  Time latency = 1 * kMicrosecond;             // one way, at least; up to twice as much
  unsigned cut = 0;                            // a send or receive is cut short, or into segments
  unsigned delay = 0;                          // a segment is held up on its way
  Time longest_delay = 50 * kMicrosecond;      // for up to this long
  std::size_t window = std::size_t{64} << 10;  // bytes of one way that nobody has read yet
  Time silence = 10 * kMillisecond;  // until a side notices that the other one is gone, at least
};

// What has happened to connections.
struct SocketCoverage {
  std::uint64_t connections = 0;  // that were made
  std::uint64_t segments = 0;
  std::uint64_t held_segments = 0;
  std::uint64_t hung_connects = 0;
  std::uint64_t resets = 0;
  std::uint64_t half_closes = 0;
  std::uint64_t silent_ends = 0;  // connections that died without either side hearing of it

  SocketCoverage& operator+=(const SocketCoverage& other);
};

class Machine;
enum class Side : std::uint8_t { kClient, kServer };  // who connects; who listens

// All machines, and the connections between them.
class SocketNetwork final : private EventHandler {
 public:
  SocketNetwork(Engine& engine, const SocketOptions& options);
  ~SocketNetwork() override;
  SocketNetwork(const SocketNetwork&) = delete;
  SocketNetwork& operator=(const SocketNetwork&) = delete;

  // Lives as long as the network. Places with this host are its own.
  Machine& add_machine(std::string name);
  Engine& engine() { return engine_; }
  const SocketCoverage& coverage() const { return coverage_; }
  // Segments take the shortest time and are whole.
  void set_calm(bool calm) { calm_ = calm; }
  std::size_t connections() const { return connections_.size(); }
  // Whether bytes that it has sent are on their way, or have arrived and were not read.
  bool anything_from(const Machine& machine) const;

  // ---- Faults. Times count from now.
  // Nothing gets through between the two for so long; then everything does, sooner or later.
  void cut(Machine& a, Machine& b, Time time);
  // Each of these strikes one connection between the two, if there is any. False: there is none.
  bool hold_one_way(Machine& a, Machine& b, Time time);
  bool reset(Machine& a, Machine& b);
  bool half_close(Machine& a, Machine& b);
  // Neither side hears of it before so long.
  bool end_silently(Machine& a, Machine& b, Time time);
  // What begins to connect between the two within this time never gets there.
  void hang_connects(Machine& a, Machine& b, Time time);
  // Some take a while of their own, up to `longest`.
  void slow_connects(Machine& a, Machine& b, Time time, Time longest);

 private:
  friend class Machine;

  struct Segment {
    enum class Kind : std::uint8_t { kConnect, kAccepted, kBytes, kEnd, kReset };
    Kind kind = Kind::kBytes;
    Time arrives = 0;
    std::vector<std::byte> bytes;
  };
  struct Way {
    std::deque<Segment> segments;
    std::size_t bytes = 0;  // of all of them
    Time last = 0;          // when the latest arrives: they keep their order
    Time held_until = 0;
    Time event_at = 0;  // of the next that is in the queue; 0: none is
    bool lost = false;  // nothing arrives any more
  };
  // One side's socket.
  struct End {
    Machine* machine = nullptr;
    int descriptor = -1;             // -1: not open yet, or not any more
    bool absent = false;             // it has not heard of the connection
    bool closed = false;             // by its process
    bool gone = false;               // with its machine: nobody answers
    bool made = false;               // the connection is, as far as this side knows
    bool ended = false;              // the other side's bytes have come to their end
    bool end_sent = false;           // its own have
    bool wants_room = false;         // to send
    int problem = 0;                 // an errno: the connection is at its end
    task::Worker* worker = nullptr;  // who polls it
    std::vector<std::byte> inbox;
    std::size_t read = 0;  // of it

    std::size_t unread() const { return inbox.size() - read; }
  };
  struct Connection {
    std::uint64_t number = 0;
    std::string port;         // that was asked for
    std::array<Way, 2> ways;  // by who sends
    std::array<End, 2> ends;
  };
  struct Between {  // two machines
    Time cut_until = 0;
    Time hung_until = 0;
    Time slow_until = 0;
    Time slowest = 0;
  };

  static std::size_t at(Side side) { return static_cast<std::size_t>(side); }
  static Side other(Side side) { return side == Side::kClient ? Side::kServer : Side::kClient; }
  bool chance(unsigned percent) { return !calm_ && random_.below(100) < percent; }
  Time up_to(Time most) { return random_.below(most + 1); }

  void happen(const Event& event) override;
  Connection* find(std::uint64_t number);
  Machine* machine_at(const std::string& name);
  Between& between(const Machine& a, const Machine& b);
  Connection* some_connection(const Machine& a, const Machine& b);

  Connection& begin(Machine& client, Machine& server, const std::string& port,
                    task::Worker* worker);
  std::size_t room(const Connection& connection, Side sender) const;
  std::size_t send(Connection& connection, Side side, std::span<const std::byte> bytes);
  std::size_t receive(Connection& connection, Side side, std::span<std::byte> into, bool peek);
  void end_sending(Connection& connection, Side side);
  void close(Connection& connection, Side side);
  void vanish(Connection& connection, Side side);

  void push(Connection& connection, Side sender, Segment segment);
  void schedule(Connection& connection, Side sender);
  void deliver(Connection& connection, Side sender);
  void arrive(Connection& connection, Side at_side, Segment segment);
  void arrive_at_listener(Connection& connection);
  void fail(Connection& connection, Side side, int problem);
  void give_up_later(Connection& connection, Side side, Time when);
  void notify(const End& end);
  void forget_if_over(Connection& connection);

  Engine& engine_;
  const SocketOptions options_;
  base::Random random_;
  bool calm_ = false;
  SocketCoverage coverage_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::map<std::uint64_t, Connection> connections_;
  std::map<std::pair<std::size_t, std::size_t>, Between> between_;
  std::uint64_t last_number_ = 0;
  int last_descriptor_ = 1000;  // never given again, and none of the system's
};

// One machine: its sockets, its clock, and the workers that go by that clock, which can be held.
class Machine final : public wire::Network, public task::Clock, public task::Simulator {
 public:
  Machine(SocketNetwork& network, std::size_t number, std::string name)
      : network_(network), number_(number), name_(std::move(name)) {}

  std::size_t number() const { return number_; }
  const std::string& name() const { return name_; }

  // Called when one of its sockets without a worker has something to be done.
  void set_listener(std::function<void()> listener) { listener_ = std::move(listener); }
  // Whether a waiter of its has something to return.
  bool any_ready() const;
  std::size_t open_sockets() const { return sockets_.size(); }

  // Its process dies: the system closes what it has open.
  void kill_process();
  // Nothing is heard of it any more.
  void switch_off();
  void switch_on() { off_ = false; }
  bool off() const { return off_; }
  // For good, in one way or the other.
  void die(bool silently);
  // Its processes are not run.
  void hold();
  void release();
  bool held() const { return held_; }
  // Calls `action` when it has sent so many more messages of at least so many bytes.
  void after_sends(std::uint64_t count, std::size_t least, std::function<void()> action);

  // ---- wire::Network
  task::Clock& clock() override { return *this; }
  Result<int> listen(const wire::Place& place) override;
  std::uint16_t port_of(int listener) override;
  int accept(int listener) override;
  Result<int> connect(const wire::Place& place, task::Worker* worker) override;
  int connect_problem(int descriptor) override;
  void close(int descriptor) override;
  ssize_t send(int descriptor, std::span<const std::byte> bytes) override;
  ssize_t receive(int descriptor, std::span<std::byte> into, bool peek) override;
  void end_sending(int descriptor) override;
  bool wait(std::span<pollfd> sockets, task::TimePoint until, task::Worker* resting) override;
  Result<std::unique_ptr<wire::Waiter>> make_waiter() override;

  // ---- task::Clock and task::Simulator
  task::TimePoint now() const override { return network_.engine().now(); }
  task::Simulator* simulator() override { return this; }
  Seat join(task::Worker& worker) override;
  void leave(Seat seat) override;
  void ready(Seat seat) override { network_.engine().ready(seat); }
  void ready_at(Seat seat, task::TimePoint when) override {
    network_.engine().ready_at(seat, when);
  }
  void pass_time(Seat seat) override { network_.engine().pass_time(seat); }

 private:
  friend class SocketNetwork;
  class MachineWaiter;

  struct Socket {
    std::uint64_t connection = 0;
    Side side = Side::kClient;
  };
  struct Listener {
    std::string port;
    std::deque<std::uint64_t> waiting;  // connections that nobody has accepted
  };
  struct Trigger {
    std::uint64_t left = 0;
    std::size_t least = 0;
    std::function<void()> action;
  };

  // The events (of poll) that a socket or listener has.
  short events_of(int descriptor) const;
  Listener* listener_at(const std::string& port);
  // nullptr where there is no such socket, or none any more.
  std::pair<SocketNetwork::Connection*, Side> find(int descriptor) const;
  void pull_triggers(std::size_t bytes);

  SocketNetwork& network_;
  const std::size_t number_;
  const std::string name_;
  bool off_ = false;
  bool held_ = false;
  std::function<void()> listener_;
  std::map<int, Socket> sockets_;
  std::map<int, Listener> listeners_;
  std::vector<MachineWaiter*> waiters_;
  std::vector<Seat> seats_;
  std::vector<Trigger> triggers_;
};

}  // namespace pando::fabric::sim
