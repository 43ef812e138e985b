// Server's loop: what the memory node's one thread knows and does. Internal to src/fabric/node.
//
//   loop.cc       opening, waiting, what comes over connections, and their ends
//   handshake.cc  strangers, until they are let in
//   leaving.cc    fences, staying, leaving, and those who are forgotten
//   execute.cc    verbs, and the redo slots of those who map the memory
#pragma once

#include <poll.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fabric/line_memory.h"
#include "fabric/node/admission.h"
#include "fabric/node/memory.h"
#include "fabric/node/rdma_access.h"
#include "fabric/node/server.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/network.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::node {

using wire::Kind;

inline constexpr std::size_t kServerRedoSlot = 0;

struct Connection {
  enum class State : std::uint8_t { kStranger, kChallenged, kIn, kHttp, kClosing };

  Connection(wire::Socket connected, bool is_local)
      : socket(std::move(connected)), local(is_local) {}

  wire::Socket socket;
  const bool local;  // by a Unix socket
  State state = State::kStranger;
  bool tls_due = false;    // it is to come by TLS, and has said nothing yet
  bool lacks_tls = false;  // it was to, and does not
  bool closed = false;     // to be freed after this round
  wire::Inbox inbox;
  wire::Outbox outbox;
  short events = POLLIN;  // what the loop waits for
  task::TimePoint let_in_until;
  // From the handshake on.
  wire::Hello hello;
  wire::Challenge challenge;
  wire::Purpose purpose{};
  ClientId client = 0;
  std::uint32_t generation = 0;
  std::uint64_t region_key = 0;
  std::size_t redo_slot = kMaxRedoSlots;
  RdmaAccess::GrantId rdma_grant = 0;  // once it has asked for one

  bool is_in() const { return state == State::kIn; }
};

class Server::Loop {
 public:
  Loop(const NodeMemory& memory, const ServerOptions& options, ServerLog* log)
      : memory_(memory),
        options_(options),
        log_(log),
        network_(*options.network),
        admission_(memory.header()),
        main_lines_(memory.main_lines(kServerRedoSlot)),
        onchip_lines_(memory.onchip_lines(kServerRedoSlot)) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  Status open();
  void run();
  std::optional<task::Duration> turn();
  void stop() {
    stopping_.store(true);
    waiter_->wake();
  }
  std::vector<wire::Place> places() const;
  std::optional<wire::Place> http_place() const;
  std::optional<wire::Place> rdma_place() const {
    return rdma_ == nullptr ? std::nullopt : std::optional(rdma_->place());
  }
  bool onchip_in_card() const { return rdma_ != nullptr && rdma_->onchip_in_card(); }
  const ServerCounts& counts() const { return counts_; }
  std::vector<std::string> audit() const;

 private:
  struct Listener {
    wire::Socket socket;
    wire::Place place;
    bool http = false;
  };

  Status listen(const wire::Place& place, bool http);
  task::TimePoint now() const { return network_.clock().now(); }
  std::optional<task::Duration> next_look() const;
  void serve_ready(std::span<const int> ready);
  void serve_ready(int descriptor);
  void look_for_gone(bool idle);
  void look_at_connections();
  void accept_all(const Listener& listener);
  bool turn_away(const Listener& listener);
  void serve(Connection& connection);
  bool begin_tls(Connection& connection);
  void ended(Connection& connection);
  void take_messages(Connection& connection);
  void flush(Connection& connection);
  bool take_message(Connection& connection, const wire::Frame& frame,
                    std::span<const std::byte> body);
  bool challenge(Connection& connection, std::span<const std::byte> body);
  bool let_in(Connection& connection, std::span<const std::byte> body);
  Status admit(Connection& connection, const wire::Proof& proof);
  Result<std::size_t> give_redo_slot(const Connection& connection);
  void take_redo_slot(std::size_t slot);
  bool refuse(Connection& connection, const Error& error);
  bool broken(Connection& connection, const Error& error);
  bool execute(Connection& connection, const wire::Frame& frame, std::span<const std::byte> body);
  void execute_verbs(Connection& connection, std::uint64_t tag, std::span<Verb> verbs,
                     std::size_t answer_bytes);
  void count(const Counters& done);
  Status check_purpose(const Connection& connection, wire::Purpose purpose) const;
  Status join(ClientId client);
  Status renew(const Connection& connection);
  bool fence(Connection& connection, const wire::Frame& frame, std::span<const std::byte> body);
  Status fence(ClientId client);
  bool stay(Connection& connection, const wire::Frame& frame, std::span<const std::byte> body);
  bool leave(Connection& connection, const wire::Frame& frame);
  Status leave(const Connection& connection);
  void remember_alone(ClientId client);
  void forget_alone();
  bool offer_rdma(Connection& connection, const wire::Frame& frame);
  void revoke_rdma(Connection& connection);
  void serve_http(Connection& connection);
  void shut(Connection& connection);
  void shut_out(Connection& connection);
  void shut_late_strangers();
  void free_shut();
  void look_at_redo_slots();
  void log(std::string_view what, std::string_view detail) const {
    if (log_ != nullptr) log_->event(what, detail);
  }

  const NodeMemory& memory_;
  const ServerOptions options_;
  ServerLog* const log_;
  wire::Network& network_;
  Admission admission_;
  const SharedLineMemory main_lines_;
  const SharedLineMemory onchip_lines_;

  std::unique_ptr<wire::Waiter> waiter_;
  wire::Socket spare_;  // a descriptor for those who come when there are no others
  std::atomic<bool> stopping_{false};
  std::vector<Listener> listeners_;
  std::unique_ptr<const wire::TlsContext> tls_;             // nullptr: without
  std::unique_ptr<RdmaAccess> rdma_;                        // nullptr: without
  std::map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  bool any_shut_ = false;
  std::size_t strangers_ = 0;  // connections that are not let in yet
  std::size_t orphans_ = 0;    // redo slots whose connection was to a former process of this node
  // Of clients that are let in; none before their first connection with one.
  std::map<ClientId, std::uint32_t> generations_;
  // Those that do not stay and have no connection, since when.
  std::map<ClientId, task::TimePoint> alone_;
  wire::Request request_;
  ServerCounts counts_;
};

}  // namespace pando::fabric::node
