#include "fabric/node/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/mutants.h"
#include "fabric/local_endpoint.h"
#include "fabric/node/admission.h"
#include "fabric/node/http.h"
#include "fabric/node/process.h"
#include "fabric/rdma/door.h"

namespace pando::fabric::node {
namespace {

using SteadyClock = std::chrono::steady_clock;
using wire::Kind;

constexpr std::size_t kServerPen = 0;
// Answers that a client has not fetched; beyond this nothing more is read from it.
constexpr std::size_t kMaxWaiting = 4 << 20;
// How long a client that does not stay is remembered without a connection.
constexpr auto kRemembered = std::chrono::seconds(10);

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
  std::uint32_t events = EPOLLIN;  // what the loop waits for
  SteadyClock::time_point let_in_until;
  // From the handshake on.
  wire::Hello hello;
  wire::Challenge challenge;
  wire::Purpose purpose{};
  ClientId client = 0;
  std::uint32_t generation = 0;
  std::uint64_t region_key = 0;
  std::size_t pen = kMaxPens;
  rdma::Door::Guest guest = 0;  // once it has asked for the door

  bool is_in() const { return state == State::kIn; }
};

}  // namespace

class Server::Loop {
 public:
  Loop(const NodeMemory& memory, const ServerOptions& options, ServerLog* log)
      : memory_(memory),
        options_(options),
        log_(log),
        admission_(memory.header()),
        main_lines_(memory.main_lines(kServerPen)),
        onchip_lines_(memory.onchip_lines(kServerPen)) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    connections_.clear();
    if (epoll_ >= 0) close(epoll_);
    if (wakeup_ >= 0) close(wakeup_);
    for (const Listener& listener : listeners_) {
      if (listener.place.local()) unlink(listener.place.path.c_str());
    }
  }

  Status open();
  void run();
  void stop() {
    stopping_.store(true);
    const std::uint64_t one = 1;
    (void)!write(wakeup_, &one, sizeof(one));
  }
  std::vector<wire::Place> places() const;
  std::optional<wire::Place> http_place() const;
  std::optional<wire::Place> rdma_place() const {
    return door_ == nullptr ? std::nullopt : std::optional(door_->place());
  }
  bool onchip_in_card() const { return door_ != nullptr && door_->onchip_in_card(); }
  const ServerCounts& counts() const { return counts_; }

 private:
  struct Listener {
    wire::Socket socket;
    wire::Place place;
    bool http = false;
  };

  Status listen(const wire::Place& place, bool http);
  void watch(int descriptor, std::uint32_t events, int operation) const {
    epoll_event event = {.events = events, .data = {.fd = descriptor}};
    epoll_ctl(epoll_, operation, descriptor, &event);
  }
  void accept_all(const Listener& listener);
  bool turn_away(const Listener& listener);
  void serve(Connection& connection);
  bool begin_tls(Connection& connection);
  void ended(Connection& connection);
  void take_messages(Connection& connection);
  void settle(Connection& connection);
  bool take_message(Connection& connection, const wire::Frame& frame,
                    std::span<const std::byte> body);
  bool challenge(Connection& connection, std::span<const std::byte> body);
  bool let_in(Connection& connection, std::span<const std::byte> body);
  Status admit(Connection& connection, const wire::Proof& proof);
  Result<std::size_t> give_pen(const Connection& connection);
  void take_pen(std::size_t pen);
  bool refuse(Connection& connection, const Error& error);
  bool broken(Connection& connection, const Error& error);
  bool execute(Connection& connection, const wire::Frame& frame, std::span<const std::byte> body);
  void execute_verbs(Connection& connection, std::uint64_t tag, std::span<Verb> verbs,
                     std::size_t answer_bytes);
  void count(const Verb& verb);
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
  bool enter(Connection& connection, const wire::Frame& frame);
  void take_guest(Connection& connection);
  void serve_http(Connection& connection);
  void shut(Connection& connection);
  void shut_out(Connection& connection);
  void shut_late_strangers();
  void free_shut();
  void look_at_pens();
  void log(std::string_view what, std::string_view detail) const {
    if (log_ != nullptr) log_->event(what, detail);
  }

  const NodeMemory& memory_;
  const ServerOptions options_;
  ServerLog* const log_;
  Admission admission_;
  const SharedLineMemory main_lines_;
  const SharedLineMemory onchip_lines_;

  int epoll_ = -1;
  int wakeup_ = -1;
  wire::Socket spare_;  // a descriptor for those who come when there are no others
  std::atomic<bool> stopping_{false};
  std::vector<Listener> listeners_;
  std::unique_ptr<const wire::TlsContext> tls_;  // nullptr: without
  std::unique_ptr<rdma::Door> door_;
  std::map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  bool any_shut_ = false;
  std::size_t strangers_ = 0;  // connections that are not let in yet
  std::size_t orphans_ = 0;    // pens whose connection was to a former process of this node
  // Of clients that are let in; none before their first connection with one.
  std::map<ClientId, std::uint32_t> generations_;
  // Those that do not stay and have no connection, since when.
  std::map<ClientId, SteadyClock::time_point> alone_;
  wire::Request request_;
  ServerCounts counts_;
};

// ---- Opening ----

Status Server::Loop::open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_ = wire::Socket(eventfd(0, EFD_CLOEXEC));
  if (epoll_ < 0 || wakeup_ < 0 || !spare_) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("the system gives no descriptors: {}", wire::system_reason(errno)));
  }
  watch(wakeup_, EPOLLIN, EPOLL_CTL_ADD);
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
  memory_.finish(kServerPen);
  look_at_pens();
  if (options_.rdma) {
    auto door = rdma::Door::open(memory_, *options_.rdma, options_.onchip_place);
    if (!door) return fail(door.error());
    door_ = std::move(*door);
    watch(door_->descriptor(), EPOLLIN, EPOLL_CTL_ADD);
  }
  for (const ClientId client : admission_.passing()) alone_[client] = SteadyClock::now();
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  return {};
}

Status Server::Loop::listen(const wire::Place& place, bool http) {
  Result<wire::Socket> socket = wire::listen_at(place);
  if (!socket) return fail(socket.error());
  Listener listener{std::move(*socket), place, http};
  if (!place.local()) listener.place.port = std::to_string(wire::port_of(listener.socket));
  watch(listener.socket.get(), EPOLLIN, EPOLL_CTL_ADD);
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
  constexpr int kStrangersLook = 100;  // milliseconds
  constexpr int kPensLook = 1000;
  std::array<epoll_event, 64> events;
  auto busy = SteadyClock::now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool spinning = SteadyClock::now() - busy < options_.spin;
    const bool looks = orphans_ > 0 || !alone_.empty();
    const int wait = spinning ? 0 : strangers_ > 0 ? kStrangersLook : looks ? kPensLook : -1;
    const int ready = epoll_wait(epoll_, events.data(), events.size(), wait);
    for (int i = 0; i < ready; ++i) {
      const int descriptor = events[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == wakeup_) continue;
      if (door_ != nullptr && descriptor == door_->descriptor()) {
        door_->serve();
        continue;
      }
      const auto listener = std::ranges::find(
          listeners_, descriptor, [](const Listener& each) { return each.socket.get(); });
      if (listener != listeners_.end()) {
        accept_all(*listener);
      } else if (const auto at = connections_.find(descriptor); at != connections_.end()) {
        serve(*at->second);
      }
    }
    if (ready > 0) busy = SteadyClock::now();
    if (ready == 0 && !spinning && orphans_ > 0) look_at_pens();
    if (!spinning && !alone_.empty()) forget_alone();
    if (strangers_ > 0) shut_late_strangers();
    if (any_shut_) free_shut();
  }
  for (auto& [descriptor, connection] : connections_) {
    // Whoever lives goes on writing with its pen, to memory that may outlive this process: the next
    // one finds the pen taken, and finishes it when its process is gone.
    if (connection->pen != kMaxPens && !connection->socket.ended()) connection->pen = kMaxPens;
    shut(*connection);
  }
  free_shut();
  if (door_ == nullptr) return;
  if (const Status closed = door_->close(); !closed) {
    log("warning", fmt::format("the on-chip memory could not be had back, and what this memory "
                               "holds is lost: {}",
                               closed.error().message()));
  }
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
    made->let_in_until = SteadyClock::now() + options_.handshake_time;
    ++strangers_;
    ++counts_.open_connections;
    watch(descriptor, EPOLLIN, EPOLL_CTL_ADD);
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
  if ((connection.events & EPOLLIN) != 0 && !connection.inbox.fill(connection.socket)) {
    // What it sent before its end is still executed, as it would have been a moment earlier.
    take_messages(connection);
    ended(connection);
    return;
  }
  take_messages(connection);
  settle(connection);
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
void Server::Loop::settle(Connection& connection) {
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
  static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);
  const auto wanted = static_cast<short>((full ? 0 : POLLIN) | (waiting ? POLLOUT : 0));
  const auto events = static_cast<std::uint32_t>(connection.socket.events(wanted));
  if (events == connection.events) return;
  connection.events = events;
  watch(connection.socket.get(), events, EPOLL_CTL_MOD);
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
    case Kind::kEnter:
      if (connection.is_in() && connection.purpose == wire::Purpose::kRdma) {
        return enter(connection, frame);
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
  return broken(connection,
                Error(ErrorCode::kCorrupt, fmt::format("wire: a message of kind {} out of turn",
                                                       static_cast<unsigned>(frame.kind))));
}

// ---- Coming in ----

bool Server::Loop::challenge(Connection& connection, std::span<const std::byte> body) {
  const auto hello = wire::parse<wire::Hello>(body);
  if (!hello || hello->magic != wire::kMagic) {
    return broken(connection, Error(ErrorCode::kCorrupt, "wire: this is no client of ours"));
  }
  if (connection.lacks_tls) {
    return refuse(connection, Error(ErrorCode::kDenied,
                                    "this memory node lets clients in by TLS alone: give tls=on "
                                    "and the cluster's key, as in ?tls=on&key_file=PATH"));
  }
  if (hello->newest < wire::kOldestVersion || hello->oldest > wire::kVersion) {
    return refuse(
        connection,
        Error(ErrorCode::kIncompatible,
              fmt::format("the client speaks versions {} to {} of the protocol, the "
                          "memory node {} to {}: bring the older one up to date",
                          hello->oldest, hello->newest, wire::kOldestVersion, wire::kVersion)));
  }
  connection.hello = *hello;
  connection.challenge.version = std::min(hello->newest, wire::kVersion);
  base::fill_random(connection.challenge.nonce);
  wire::append(connection.outbox.bytes(), Kind::kChallenge, connection.challenge);
  connection.state = Connection::State::kChallenged;
  return true;
}

bool Server::Loop::let_in(Connection& connection, std::span<const std::byte> body) {
  const auto proof = wire::parse<wire::Proof>(body);
  if (!proof) return broken(connection, Error(ErrorCode::kCorrupt, "wire: no proof"));
  const base::Digest expected =
      wire::client_proof(options_.key, connection.hello, connection.challenge, *proof);
  if (!base::same(expected, proof->digest)) {
    return refuse(connection,
                  Error(ErrorCode::kDenied,
                        options_.key.empty()
                            ? "the memory node has no key, the client has one: start the node with "
                              "--key-file, or leave the key out of the URL"
                            : "wrong key: give the cluster's own, as in ?key_file=PATH"));
  }
  const std::string_view cluster(proof->cluster, strnlen(proof->cluster, sizeof(proof->cluster)));
  if (cluster != options_.cluster) {
    return refuse(connection, Error(ErrorCode::kDenied,
                                    fmt::format("this memory node belongs to cluster '{}', not "
                                                "'{}'",
                                                options_.cluster, cluster)));
  }
  if (proof->life != 0 && proof->life != memory_.life()) {
    return refuse(connection, Error(ErrorCode::kDataLost,
                                    "the memory node has lost the memory that the client knew"));
  }
  if (Status admitted = admit(connection, *proof); !admitted) {
    return refuse(connection, admitted.error());
  }
  connection.state = Connection::State::kIn;
  --strangers_;
  connection.region_key = base::random_word();
  wire::Welcome welcome{.region_key = connection.region_key,
                        .life = memory_.life(),
                        .memory_bytes = memory_.bytes(),
                        .onchip_bytes = memory_.onchip_bytes(),
                        .client = connection.client,
                        .pen = static_cast<std::uint32_t>(connection.pen)};
  welcome.digest = wire::node_proof(options_.key, connection.hello, connection.challenge, welcome);
  ++counts_.connections;
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  log("let in", fmt::format("client {} for {}", connection.client,
                            connection.purpose == wire::Purpose::kVerbs     ? "verbs"
                            : connection.purpose == wire::Purpose::kMapping ? "mapping"
                            : connection.purpose == wire::Purpose::kRdma    ? "rdma"
                                                                            : "control"));
  if (connection.purpose == wire::Purpose::kMapping) {
    wire::Bytes bytes;
    wire::append(bytes, Kind::kWelcome, welcome);
    // The descriptor goes with the first byte: nothing may wait before it.
    if (!connection.outbox.flush(connection.socket) || connection.outbox.waiting() > 0 ||
        !connection.socket.send_with_descriptor(bytes, memory_.descriptor())) {
      shut(connection);
      return false;
    }
    return true;
  }
  wire::append(connection.outbox.bytes(), Kind::kWelcome, welcome);
  return true;
}

Status Server::Loop::check_purpose(const Connection& connection, wire::Purpose purpose) const {
  switch (purpose) {
    case wire::Purpose::kControl:
      return {};
    case wire::Purpose::kRdma:
      if (door_ != nullptr) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "this memory node serves no RDMA: start it with --rdma ADDRESS, or open tcp:");
    case wire::Purpose::kVerbs:
      if (door_ == nullptr) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "this memory node serves RDMA, and nothing beside it: open rdma:");
    case wire::Purpose::kMapping:
      if (door_ != nullptr) {
        return fail(ErrorCode::kInvalidArgument,
                    "this memory node serves RDMA, and nothing beside it: open rdma:");
      }
      if (connection.local) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "memory is mapped through the node's Unix socket, as in mapped:unix:PATH");
  }
  return fail(ErrorCode::kCorrupt, "wire: a purpose that is not known");
}

Status Server::Loop::admit(Connection& connection, const wire::Proof& proof) {
  if (Status served = check_purpose(connection, proof.purpose); !served) return served;
  connection.purpose = proof.purpose;
  connection.client = proof.client;
  connection.generation = proof.generation;
  if (proof.purpose == wire::Purpose::kControl && proof.client == 0) return {};
  if (connection.client == 0) {
    Result<ClientId> client = admission_.new_client();
    if (!client) return fail(client.error());
    connection.client = *client;
    if (Status joined = join(*client); !joined) return joined;
  } else if (proof.joins != 0) {
    if (Status joined = join(connection.client); !joined) return joined;
  } else if (!admission_.admitted(connection.client)) {
    return fail(ErrorCode::kFenced,
                fmt::format("client {} was taken for dead and shut out", connection.client));
  }
  if (Status renewed = renew(connection); !renewed) return renewed;
  alone_.erase(connection.client);
  if (proof.purpose == wire::Purpose::kMapping) {
    Result<std::size_t> pen = give_pen(connection);
    if (!pen) return fail(pen.error());
    connection.pen = *pen;
  }
  return {};
}

// Where there is no room, who has been alone for the longest is forgotten at once.
Status Server::Loop::join(ClientId client) {
  Status joined = admission_.join(client);
  if (joined || joined.error().code() != ErrorCode::kBusy || alone_.empty()) return joined;
  const auto longest =
      std::ranges::min_element(alone_, {}, [](const auto& each) { return each.second; });
  admission_.leave(longest->first);
  generations_.erase(longest->first);
  alone_.erase(longest);
  return admission_.join(client);
}

// What it has sent over older connections must not happen after what comes over this one; and an
// older one that comes late must not be let in, for the same reason.
Status Server::Loop::renew(const Connection& connection) {
  if (connection.generation == 0) return {};
  std::uint32_t& newest = generations_[connection.client];
  if (connection.generation < newest && !base::mutated(base::Mutant::kOldGeneration)) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("client {} has renewed its connections since this one began",
                            connection.client));
  }
  newest = std::max(newest, connection.generation);
  for (auto& [descriptor, other] : connections_) {
    if (other->client == connection.client && other->is_in() && other.get() != &connection &&
        other->generation != 0 && other->generation < connection.generation) {
      shut(*other);
    }
  }
  return {};
}

bool Server::Loop::refuse(Connection& connection, const Error& error) {
  ++counts_.refused;
  log("refused", error.message());
  wire::append_refusal(connection.outbox.bytes(), options_.key, connection.hello,
                       connection.challenge, error);
  connection.state = Connection::State::kClosing;
  remember_alone(connection.client);  // it may have joined before something else was wrong
  return false;
}

// The peer does not keep to the protocol: it is told nothing.
bool Server::Loop::broken(Connection& connection, const Error& error) {
  ++counts_.broken;
  log("broken", error.message());
  shut(connection);
  return false;
}

// ---- Pens ----

Result<std::size_t> Server::Loop::give_pen(const Connection& connection) {
  for (std::size_t i = 0; i < kMaxPens; ++i) {
    if (i == kServerPen || memory_.pen(i).client != 0) continue;
    Pen& pen = memory_.pen(i);
    pen.process = wire::peer_process(connection.socket);
    pen.started = process_started(pen.process);
    pen.length = 0;
    pen.client = connection.client;
    ++counts_.pens;
    return i;
  }
  return fail(ErrorCode::kBusy,
              fmt::format("{} threads map the memory node already", kMaxPens - 1));
}

void Server::Loop::take_pen(std::size_t pen) {
  const std::size_t finished = memory_.finish(pen);
  counts_.finished_stripes += finished;
  memory_.pen(pen).client = 0;
  --counts_.pens;
}

// Pens that were given by a former process of this node: when their own processes are gone, no
// connection tells.
void Server::Loop::look_at_pens() {
  orphans_ = 0;
  for (std::size_t i = 0; i < kMaxPens; ++i) {
    const Pen& pen = memory_.pen(i);
    if (i == kServerPen || pen.client == 0) continue;
    if (std::ranges::any_of(connections_,
                            [i](const auto& each) { return each.second->pen == i; })) {
      continue;
    }
    if (process_started(pen.process) == pen.started) {
      ++orphans_;
    } else {
      ++counts_.pens;  // the former process has counted it
      take_pen(i);
    }
  }
}

// ---- Work ----

bool Server::Loop::execute(Connection& connection, const wire::Frame& frame,
                           std::span<const std::byte> body) {
  const Status parsed =
      request_.parse(body, connection.region_key,
                     {.memory_bytes = memory_.bytes(), .onchip_bytes = memory_.onchip_bytes()});
  if (!parsed && parsed.error().code() != ErrorCode::kInvalidArgument) {
    return broken(connection, parsed.error());
  }
  if (!parsed) {
    wire::append_answer_error(connection.outbox.bytes(), frame.tag, parsed.error());
    return true;
  }
  execute_verbs(connection, frame.tag, request_.verbs(), request_.answer_bytes());
  ++counts_.batches;
  return true;
}

void Server::Loop::execute_verbs(Connection& connection, std::uint64_t tag, std::span<Verb> verbs,
                                 std::size_t answer_bytes) {
  wire::Answer answer(connection.outbox.bytes(), tag, answer_bytes);
  for (Verb& verb : verbs) {
    const std::uint64_t offset = verb.target.offset_in_part();
    if (verb.kind == VerbKind::kRead) verb.local = answer.place_of_read();
    if (!fabric::execute(verb, verb.target.on_chip() ? onchip_lines_ : main_lines_, offset)) {
      answer.give_up(Error(ErrorCode::kUnavailable,
                           "a process that has stopped holds the memory that is asked for"));
      return;
    }
    answer.add(verb);
    count(verb);
  }
  answer.finish();
}

void Server::Loop::count(const Verb& verb) {
  const auto add = [](std::atomic<std::uint64_t>& to, std::uint64_t number) {
    // This thread alone writes them.
    to.store(to.load(std::memory_order_relaxed) + number, std::memory_order_relaxed);
  };
  switch (verb.kind) {
    case VerbKind::kRead:
      add(counts_.reads, 1);
      add(counts_.bytes_read, verb.length);
      break;
    case VerbKind::kWrite:
      add(counts_.writes, 1);
      add(counts_.bytes_written, verb.length);
      break;
    case VerbKind::kCompareSwap:
    case VerbKind::kMaskedCompareSwap:
      add(counts_.compare_swaps, 1);
      break;
    case VerbKind::kFetchAdd:
      add(counts_.fetch_adds, 1);
      break;
  }
}

bool Server::Loop::fence(Connection& connection, const wire::Frame& frame,
                         std::span<const std::byte> body) {
  const auto client = wire::parse<std::uint64_t>(body);
  if (!client) return broken(connection, Error(ErrorCode::kCorrupt, "wire: no fence"));
  Status done;
  if (*client > std::numeric_limits<ClientId>::max()) {
    done = fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no client {}: ids have 32 bits", *client));
  } else {
    done = fence(static_cast<ClientId>(*client));
  }
  if (!connection.is_in()) return false;  // it has shut itself out
  wire::append_done(connection.outbox.bytes(), done, frame.tag);
  return true;
}

Status Server::Loop::fence(ClientId client) {
  // Some may have ended without anyone having looked.
  for (auto& [descriptor, other] : connections_) {
    if (other->client == client && other->pen != kMaxPens && other->socket.ended()) shut(*other);
  }
  look_at_pens();
  for (std::size_t i = 0; i < kMaxPens; ++i) {
    const Pen& pen = memory_.pen(i);
    if (pen.client != client || client == 0) continue;
    return fail(ErrorCode::kBusy,
                fmt::format("client {} still maps the memory, in process {}", client, pen.process));
  }
  const bool admitted = admission_.admitted(client);
  // Whether it is let in now or not: it may be on its way.
  if (Status fenced = admission_.fence(client); !fenced) return fenced;
  for (auto& [descriptor, other] : connections_) {
    if (other->client == client && other->is_in()) shut_out(*other);
  }
  generations_.erase(client);
  alone_.erase(client);
  if (!admitted) return {};
  ++counts_.fenced;
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  log("fenced", fmt::format("client {}", client));
  return {};
}

bool Server::Loop::stay(Connection& connection, const wire::Frame& frame,
                        std::span<const std::byte> body) {
  const auto stays = wire::parse<std::uint64_t>(body);
  if (!stays || *stays > 1) {
    return broken(connection, Error(ErrorCode::kCorrupt, "wire: no word of staying"));
  }
  const Status done = admission_.stay(connection.client, *stays == 1);
  wire::append_done(connection.outbox.bytes(), done, frame.tag);
  return true;
}

bool Server::Loop::leave(Connection& connection, const wire::Frame& frame) {
  const Status left = leave(connection);
  if (left) {
    // Nothing comes over this one either, but questions.
    connection.purpose = wire::Purpose::kControl;
    take_guest(connection);
  }
  wire::append_done(connection.outbox.bytes(), left, frame.tag);
  return true;
}

// When this has succeeded, nothing of the client takes effect here any more.
Status Server::Loop::leave(const Connection& connection) {
  const ClientId client = connection.client;
  if (client == 0) return fail(ErrorCode::kInvalidArgument, "client 0 is nobody");
  for (auto& [descriptor, other] : connections_) {
    if (other->client != client || other.get() == &connection || !other->is_in()) continue;
    if (other->pen != kMaxPens && !other->socket.ended()) {
      return fail(ErrorCode::kBusy, fmt::format("client {} still maps the memory", client));
    }
    shut(*other);
  }
  admission_.leave(client);
  generations_.erase(client);
  alone_.erase(client);
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  return {};
}

// The last connection of a client that does not stay has ended.
void Server::Loop::remember_alone(ClientId client) {
  if (client == 0 || !admission_.admitted(client) || admission_.stays(client)) return;
  const bool connected = std::ranges::any_of(connections_, [client](const auto& each) {
    return each.second->client == client && each.second->is_in() && !each.second->closed;
  });
  if (!connected) alone_.try_emplace(client, SteadyClock::now());
}

void Server::Loop::forget_alone() {
  const auto before = SteadyClock::now() - kRemembered;
  for (auto each = alone_.begin(); each != alone_.end();) {
    if (each->second > before) {
      ++each;
      continue;
    }
    if (!admission_.stays(each->first)) {
      admission_.leave(each->first);
      generations_.erase(each->first);
    }
    each = alone_.erase(each);
  }
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
}

bool Server::Loop::enter(Connection& connection, const wire::Frame& frame) {
  take_guest(connection);
  const rdma::Door::Invitation invitation = door_->invite();
  connection.guest = invitation.guest;
  wire::append(connection.outbox.bytes(), Kind::kDoor, invitation.door, frame.tag);
  return true;
}

// When this returns, nothing that it has sent by RDMA takes effect any more.
void Server::Loop::take_guest(Connection& connection) {
  if (connection.guest != 0) door_->withdraw(std::exchange(connection.guest, 0));
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
  watch(connection.socket.get(), 0, EPOLL_CTL_DEL);
  if (connection.pen != kMaxPens) take_pen(std::exchange(connection.pen, kMaxPens));
  take_guest(connection);
  if (connection.is_in()) remember_alone(connection.client);
}

// It is told so, and nothing that it has sent is read any more. The connection ends when it has
// heard, or after a while: to close it with bytes unread would take back what it is told.
void Server::Loop::shut_out(Connection& connection) {
  take_guest(connection);
  ++strangers_;
  connection.state = Connection::State::kClosing;
  connection.let_in_until = SteadyClock::now() + options_.handshake_time;
  wire::append_refusal(
      connection.outbox.bytes(), options_.key, connection.hello, connection.challenge,
      Error(ErrorCode::kFenced,
            fmt::format("client {} was taken for dead and shut out", connection.client)));
  if (!connection.outbox.flush(connection.socket)) {
    shut(connection);
    return;
  }
  connection.events = EPOLLIN;
  watch(connection.socket.get(), connection.events, EPOLL_CTL_MOD);
}

void Server::Loop::shut_late_strangers() {
  const auto now = SteadyClock::now();
  for (auto& [descriptor, connection] : connections_) {
    if (!connection->is_in() && !connection->closed && now > connection->let_in_until) {
      shut(*connection);
    }
  }
}

void Server::Loop::free_shut() {
  counts_.open_connections -= static_cast<std::uint32_t>(
      std::erase_if(connections_, [](const auto& each) { return each.second->closed; }));
  any_shut_ = false;
}

// ---- Server ----

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::open(const NodeMemory& memory, const ServerOptions& options,
                                             ServerLog* log) {
  auto loop = std::make_unique<Loop>(memory, options, log);
  if (Status open = loop->open(); !open) return fail(open.error());
  return std::unique_ptr<Server>(new Server(std::move(loop)));
}

void Server::run() { loop_->run(); }
void Server::stop() { loop_->stop(); }
std::vector<wire::Place> Server::places() const { return loop_->places(); }
std::optional<wire::Place> Server::http_place() const { return loop_->http_place(); }
std::optional<wire::Place> Server::rdma_place() const { return loop_->rdma_place(); }
bool Server::onchip_in_card() const { return loop_->onchip_in_card(); }
const ServerCounts& Server::counts() const { return loop_->counts(); }

}  // namespace pando::fabric::node
