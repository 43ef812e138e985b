// Server: the memory node's one thread. It lets clients in, executes the batches of those that come
// by a socket, hands the memory to those of this machine, grants
// access to those that come for RDMA, and shuts out whom it is told to.
//
//  - One thread, so what it has not read cannot happen: once a fence is answered, or a client's
//    newer generation let in, nothing of the closed connections takes effect any more.
//    For RDMA, their queue pairs are destroyed first.
//  - A batch is checked whole before any of it is executed.
//  - It spins for a moment after work, then blocks: an idle node costs nothing.
//  - What a peer may cost is bounded: connections, the bytes of a message, the time to come in, and
//    the answers that it does not fetch (then nothing more is read from it).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/node/memory.h"
#include "fabric/node/rdma_access.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::node {

struct ServerOptions {
  std::vector<wire::Place> listen;
  std::optional<wire::Place> http;  // metrics and health
  // Where given (rdma/acceptor.h), verbs come by RDMA and in no other way: the card's atomics and
  // those of this thread or of processes that map the memory would not be atomic with one another.
  OpenRdmaAccess rdma;
  std::string key;  // empty: everyone may come in
  // By TCP, clients are let in by TLS alone; Unix sockets and HTTP stay as they are. With a key.
  bool tls = false;
  std::string cluster;
  std::size_t max_connections = 4096;
  std::chrono::microseconds spin{50};
  std::chrono::milliseconds handshake_time{2000};
  // How long a client that does not stay is remembered without a connection.
  std::chrono::milliseconds remembered{10000};
  wire::Network* network = &wire::Network::system();
};

// What a node has done since it started. Read by anyone, at any time.
struct ServerCounts {
  std::atomic<std::uint64_t> reads{0}, writes{0}, compare_swaps{0}, fetch_adds{0};
  std::atomic<std::uint64_t> bytes_read{0}, bytes_written{0};
  std::atomic<std::uint64_t> batches{0}, connections{0}, refused{0}, fenced{0}, broken{0};
  std::atomic<std::uint64_t> finished_stripes{0};
  // Generations of clients' connections beyond the first; connections refused for being of an older
  // one; clients that did not stay, and are forgotten.
  std::atomic<std::uint64_t> renewed{0}, outdated{0}, forgotten{0};
  std::atomic<std::uint32_t> open_connections{0}, clients{0}, redo_slots{0};
};

// What happened, for a log: one line an event.
class ServerLog {
 public:
  virtual ~ServerLog() = default;
  virtual void event(std::string_view what, std::string_view detail) = 0;
};

class Server {
 public:
  // Listens from now on. The memory and the log outlive the server.
  static Result<std::unique_ptr<Server>> open(const NodeMemory& memory,
                                              const ServerOptions& options,
                                              ServerLog* log = nullptr);
  ~Server();

  // Serves until stop(). Connections are closed when it returns, and all of the memory's bytes are
  // in the memory.
  void run();
  // For those who drive it themselves, on simulated time: does what can be done now, and says after
  // how long it wants to be asked again though nothing comes.
  std::optional<task::Duration> turn();
  void stop();  // any thread, and signal handlers

  // As options.listen, with the ports that the system chose where 0 was asked for.
  std::vector<wire::Place> places() const;
  std::optional<wire::Place> http_place() const;
  std::optional<wire::Place> rdma_place() const;
  bool onchip_in_card() const;
  const ServerCounts& counts() const;
  // What should not be, one line each: connections of clients that are not let in, or of a former
  // generation. For tests; called where run() is not.
  std::vector<std::string> audit() const;

 private:
  class Loop;
  explicit Server(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace pando::fabric::node
