#include "fabric/node/loop.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fabric/node/http.h"

namespace pando::fabric::node {
namespace {

// Answers that a client has not fetched; beyond this nothing more is read from it.
constexpr std::size_t kMaxWaiting = 4 << 20;

}  // namespace

// ---- Opening ----

Server::Loop::~Loop() {
  connections_.clear();
  for (const Listener& listener : listeners_) {
    if (listener.place.local()) unlink(listener.place.path.c_str());
  }
}

Status Server::Loop::open() {
  Result<std::unique_ptr<wire::Waiter>> waiter = network_.make_waiter();
  if (!waiter) return fail(waiter.error());
  waiter_ = std::move(*waiter);
  spare_ = wire::Socket(eventfd(0, EFD_CLOEXEC));
  if (!spare_) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("the system gives no descriptors: {}", wire::system_reason(errno)));
  }
  if (options_.tls) {
    auto tls = wire::TlsContext::make(options_.key);
    if (!tls) return fail(tls.error());
    tls_ = std::move(*tls);
  }
  for (const wire::Place& place : options_.listen) {
    if (Status open = listen(place, false); !open) return open;
  }
  if (options_.http) {
    if (Status open = listen(*options_.http, true); !open) return open;
  }
  // Memory that survived may hold what a former process of this node, or clients of it, left.
  memory_.finish(kServerRedoSlot);
  look_at_redo_slots();
  if (options_.rdma) {
    auto rdma = options_.rdma(memory_);
    if (!rdma) return fail(rdma.error());
    rdma_ = std::move(*rdma);
    waiter_->add(rdma_->descriptor(), POLLIN);
  }
  for (const ClientId client : admission_.passing()) alone_[client] = now();
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  return {};
}

Status Server::Loop::listen(const wire::Place& place, bool http) {
  Result<wire::Socket> socket = wire::listen_at(place, network_);
  if (!socket) return fail(socket.error());
  Listener listener{std::move(*socket), place, http};
  if (!place.local()) listener.place.port = std::to_string(wire::port_of(listener.socket));
  waiter_->add(listener.socket.get(), POLLIN);
  listeners_.push_back(std::move(listener));
  return {};
}

std::vector<wire::Place> Server::Loop::places() const {
  std::vector<wire::Place> places;
  for (const Listener& each : listeners_) {
    if (!each.http) places.push_back(each.place);
  }
  return places;
}

std::optional<wire::Place> Server::Loop::http_place() const {
  for (const Listener& each : listeners_) {
    if (each.http) return each.place;
  }
  return std::nullopt;
}

// ---- The loop ----

void Server::Loop::run() {
  auto busy = now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool spinning = now() - busy < options_.spin;
    const std::span<const int> ready =
        waiter_->wait(spinning ? std::optional(task::Duration(0)) : next_look());
    serve_ready(ready);
    if (!ready.empty()) busy = now();
    if (!spinning) look_for_gone(ready.empty());
    look_at_connections();
  }
  for (auto& [descriptor, connection] : connections_) {
    // Whoever lives goes on writing with its redo slot, to memory that may outlive this process:
    // the next one finds the redo slot taken, and finishes it when its process is gone.
    if (connection->redo_slot != kMaxRedoSlots && !connection->socket.ended()) {
      connection->redo_slot = kMaxRedoSlots;
    }
    shut(*connection);
  }
  free_shut();
  if (rdma_ == nullptr) return;
  if (const Status closed = rdma_->close(); !closed) {
    log("warning", fmt::format("the on-chip memory could not be had back, and what this memory "
                               "holds is lost: {}",
                               closed.error().message()));
  }
}

std::optional<task::Duration> Server::Loop::turn() {
  const std::span<const int> ready = waiter_->wait(task::Duration(0));
  serve_ready(ready);
  look_for_gone(ready.empty());
  look_at_connections();
  return next_look();
}

// How long it may wait: there are things that nothing tells of.
std::optional<task::Duration> Server::Loop::next_look() const {
  constexpr int kLooks = 20;  // within the time that strangers have
  if (strangers_ > 0) return task::Duration(options_.handshake_time) / kLooks;
  if (orphans_ > 0 || !alone_.empty()) return task::Duration(options_.remembered) / (kLooks / 2);
  return std::nullopt;
}

void Server::Loop::serve_ready(std::span<const int> ready) {
  for (const int descriptor : ready) serve_ready(descriptor);
}

void Server::Loop::serve_ready(int descriptor) {
  if (rdma_ != nullptr && descriptor == rdma_->descriptor()) {
    rdma_->serve();
    return;
  }
  const auto listener = std::ranges::find(listeners_, descriptor,
                                          [](const Listener& each) { return each.socket.get(); });
  if (listener != listeners_.end()) {
    accept_all(*listener);
  } else if (const auto at = connections_.find(descriptor); at != connections_.end()) {
    serve(*at->second);
  }
}

void Server::Loop::look_for_gone(bool idle) {
  if (idle && orphans_ > 0) look_at_redo_slots();
  if (!alone_.empty()) forget_alone();
}

void Server::Loop::look_at_connections() {
  if (strangers_ > 0) shut_late_strangers();
  if (any_shut_) free_shut();
}

void Server::Loop::accept_all(const Listener& listener) {
  for (;;) {
    wire::Socket socket = wire::accept_from(listener.socket);
    if (!socket) {
      const bool no_descriptors = errno == EMFILE || errno == ENFILE;
      if (no_descriptors && turn_away(listener)) continue;
      return;
    }
    if (connections_.size() >= options_.max_connections) {
      // No words: whoever comes in such numbers would not listen. The client sees a closed link.
      ++counts_.refused;
      log("refused", fmt::format("there are {} connections already", connections_.size()));
      continue;
    }
    const int descriptor = socket.get();
    auto made = std::make_unique<Connection>(std::move(socket), listener.place.local());
    if (listener.http) made->state = Connection::State::kHttp;
    made->tls_due = tls_ != nullptr && !listener.http && !listener.place.local();
    made->let_in_until = now() + options_.handshake_time;
    ++strangers_;
    ++counts_.open_connections;
    waiter_->add(descriptor, POLLIN);
    connections_[descriptor] = std::move(made);
  }
}

// Whoever waits while no descriptor is left would keep the loop awake. False: nobody does.
bool Server::Loop::turn_away(const Listener& listener) {
  spare_.close();
  wire::Socket socket = wire::accept_from(listener.socket);
  const bool came = static_cast<bool>(socket);
  socket.close();
  spare_ = wire::Socket(eventfd(0, EFD_CLOEXEC));
  if (!came) return false;
  ++counts_.refused;
  log("refused",
      fmt::format("no descriptors are left for a connection: allow more than the {} that are open, "
                  "as by LimitNOFILE= or ulimit -n",
                  connections_.size()));
  return true;
}

void Server::Loop::serve(Connection& connection) {
  if (connection.closed || (connection.tls_due && !begin_tls(connection))) return;
  if ((connection.events & POLLIN) != 0 && !connection.inbox.fill(connection.socket)) {
    // What it sent before its end is still executed, as it would have been a moment earlier.
    take_messages(connection);
    ended(connection);
    return;
  }
  take_messages(connection);
  flush(connection);
}

// The first byte tells who speaks TLS. Who does not is told so, once it has said that it is a
// client. False: nothing has come.
bool Server::Loop::begin_tls(Connection& connection) {
  std::byte first{};
  const auto got = connection.socket.peek({&first, 1});
  if (got && *got == 0) return false;
  connection.tls_due = false;
  connection.lacks_tls = first != wire::kTlsFirstByte;
  if (got && (connection.lacks_tls || connection.socket.start_tls(*tls_, wire::TlsRole::kNode))) {
    return true;
  }
  shut(connection);
  return false;
}

void Server::Loop::ended(Connection& connection) {
  if (connection.closed) return;
  const std::optional<Error> problem = connection.socket.problem();
  if (problem) {
    const bool denied = problem->code() == ErrorCode::kDenied;
    ++(denied ? counts_.refused : counts_.broken);
    log(denied ? "refused" : "broken", problem->message());
  }
  shut(connection);
}

void Server::Loop::take_messages(Connection& connection) {
  if (connection.state == Connection::State::kHttp) {
    serve_http(connection);
    return;
  }
  while (!connection.closed && connection.state != Connection::State::kClosing &&
         connection.outbox.waiting() < kMaxWaiting) {
    const std::uint32_t limit = connection.is_in() ? wire::kMaxBytes : wire::kMaxBytesOfStrangers;
    const auto bytes = connection.inbox.bytes();
    auto frame = wire::parse_frame(bytes, limit);
    if (!frame) {
      const bool tls = !connection.is_in() && bytes.front() == wire::kTlsFirstByte;
      broken(connection, tls ? Error(ErrorCode::kIncompatible,
                                     "a client speaks TLS, and this memory node does not: start it "
                                     "with --tls on, or leave tls=on out of the client's URL")
                             : frame.error());
      return;
    }
    if (!*frame) return;
    const auto body = bytes.subspan(sizeof(wire::Frame), (*frame)->bytes);
    if (!take_message(connection, **frame, body)) return;
    connection.inbox.drop(sizeof(wire::Frame) + (*frame)->bytes);
  }
}

// Sends what there is to send, and decides what to wait for.
void Server::Loop::flush(Connection& connection) {
  if (connection.closed) return;
  const bool was_full = connection.outbox.waiting() >= kMaxWaiting;
  if (!connection.outbox.flush(connection.socket)) {
    shut(connection);
    return;
  }
  // Messages that were left because of a full outbox.
  if (was_full && connection.outbox.waiting() < kMaxWaiting) {
    take_messages(connection);
    if (connection.closed) return;
    if (!connection.outbox.flush(connection.socket)) {
      shut(connection);
      return;
    }
  }
  const bool waiting = connection.outbox.waiting() > 0;
  if (connection.state == Connection::State::kClosing) {
    connection.inbox.drop(connection.inbox.bytes().size());
    if (!waiting) connection.socket.end_sending();
  }
  const bool full = connection.outbox.waiting() >= kMaxWaiting;
  const auto wanted = static_cast<short>((full ? 0 : POLLIN) | (waiting ? POLLOUT : 0));
  const short events = connection.socket.events(wanted);
  if (events == connection.events) return;
  connection.events = events;
  waiter_->change(connection.socket.get(), events);
}

bool Server::Loop::take_message(Connection& connection, const wire::Frame& frame,
                                std::span<const std::byte> body) {
  using State = Connection::State;
  switch (frame.kind) {
    case Kind::kHello:
      if (connection.state == State::kStranger) return challenge(connection, body);
      break;
    case Kind::kProof:
      if (connection.state == State::kChallenged) return let_in(connection, body);
      break;
    case Kind::kBatch:
      if (connection.is_in() && connection.purpose == wire::Purpose::kVerbs &&
          connection.generation != 0) {
        return execute(connection, frame, body);
      }
      break;
    case Kind::kFence:
      if (connection.is_in()) return fence(connection, frame, body);
      break;
    case Kind::kRdmaRequest:
      if (connection.is_in() && connection.purpose == wire::Purpose::kRdma) {
        return offer_rdma(connection, frame);
      }
      break;
    case Kind::kStay:
      if (connection.is_in()) return stay(connection, frame, body);
      break;
    case Kind::kLeave:
      if (connection.is_in()) return leave(connection, frame);
      break;
    default:
      break;
  }
  return broken(connection, Error(ErrorCode::kCorrupt, fmt::format("wire: a {} out of turn",
                                                                   wire::name_of(frame.kind))));
}

void Server::Loop::serve_http(Connection& connection) {
  const auto bytes = connection.inbox.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (connection.state != Connection::State::kHttp) return;
  if (text.find("\r\n\r\n") == std::string_view::npos) {
    if (text.size() > kMaxHttpRequest) shut(connection);
    return;
  }
  const std::string answer = answer_http(text, memory_, counts_);
  const auto* const words = reinterpret_cast<const std::byte*>(answer.data());
  connection.outbox.bytes().insert(connection.outbox.bytes().end(), words, words + answer.size());
  connection.state = Connection::State::kClosing;
}

// ---- Ends ----

void Server::Loop::shut(Connection& connection) {
  if (connection.closed) return;
  connection.closed = true;
  any_shut_ = true;
  if (!connection.is_in()) --strangers_;
  waiter_->remove(connection.socket.get());
  if (connection.redo_slot != kMaxRedoSlots) {
    take_redo_slot(std::exchange(connection.redo_slot, kMaxRedoSlots));
  }
  revoke_rdma(connection);
  if (connection.is_in()) remember_alone(connection.client);
}

// It is told so, and nothing that it has sent is read any more. The connection ends when it has
// heard, or after a while: to close it with bytes unread would take back what it is told.
void Server::Loop::shut_out(Connection& connection) {
  revoke_rdma(connection);
  ++strangers_;
  connection.state = Connection::State::kClosing;
  connection.let_in_until = now() + options_.handshake_time;
  wire::append_refusal(
      connection.outbox.bytes(), options_.key, connection.hello, connection.challenge,
      Error(ErrorCode::kFenced,
            fmt::format("client {} was taken for dead and shut out", connection.client)));
  if (!connection.outbox.flush(connection.socket)) {
    shut(connection);
    return;
  }
  connection.events = POLLIN;
  waiter_->change(connection.socket.get(), connection.events);
}

void Server::Loop::shut_late_strangers() {
  const task::TimePoint moment = now();
  for (auto& [descriptor, connection] : connections_) {
    if (!connection->is_in() && !connection->closed && moment > connection->let_in_until) {
      shut(*connection);
    }
  }
}

void Server::Loop::free_shut() {
  counts_.open_connections -= static_cast<std::uint32_t>(
      std::erase_if(connections_, [](const auto& each) { return each.second->closed; }));
  any_shut_ = false;
}

}  // namespace pando::fabric::node
