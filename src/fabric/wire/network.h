// Network: what sockets need of the machine that they are of, and that machine's time. The system's
// own is the default; simulated machines have one each (sim/sockets.h), on which the same clients
// and memory nodes run.
//
// Sockets are numbers, and calls say by errno why they failed (-1), as the system's do.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "fabric/wire/place.h"
#include "task/worker.h"
#include <pando/result.h>

namespace pando::fabric::wire {

// Waits for events of many sockets. Used by one thread, but for wake().
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Events are those of poll().
  virtual void add(int descriptor, short events) = 0;
  virtual void change(int descriptor, short events) = 0;
  virtual void remove(int descriptor) = 0;
  // Some that have events, and at least one if there are any; none where it has waited for as long
  // as it may (nullopt: as it takes), or was woken.
  virtual std::span<const int> wait(std::optional<task::Duration> most) = 0;
  // Any thread, and signal handlers.
  virtual void wake() = 0;
};

class Network {
 public:
  virtual ~Network() = default;
  static Network& system();

  // What its machine goes by.
  virtual task::Clock& clock() = 0;

  virtual Result<int> listen(const Place& place) = 0;
  virtual std::uint16_t port_of(int listener) = 0;
  virtual int accept(int listener) = 0;
  // Begins. `worker`: who polls the socket. On simulated time nobody looks for himself: it is run
  // when there is something to be done.
  virtual Result<int> connect(const Place& place, task::Worker* worker) = 0;
  // Of a connection that could not be made; 0 where it is.
  virtual int connect_problem(int descriptor) = 0;
  virtual void close(int descriptor) = 0;

  virtual ssize_t send(int descriptor, std::span<const std::byte> bytes) = 0;
  // `peek`: the bytes stay.
  virtual ssize_t receive(int descriptor, std::span<std::byte> into, bool peek) = 0;
  virtual void end_sending(int descriptor) = 0;

  // Waits for an event of any of them. False: it is late. On simulated time, `resting` is not run
  // meanwhile.
  virtual bool wait(std::span<pollfd> sockets, task::TimePoint until,
                    task::Worker* resting = nullptr) = 0;
  virtual Result<std::unique_ptr<Waiter>> make_waiter() = 0;
};

// Of an errno: nothing is wrong, the call is to be made again later.
bool would_block(int problem);
// What went wrong with the last call, for people.
std::string system_reason(int problem);

}  // namespace pando::fabric::wire
