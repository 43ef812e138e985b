#include "fabric/sim/tcp_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/node/server.h"
#include "fabric/tcp/tcp.h"

namespace pando::fabric::sim {
namespace {

constexpr std::string_view kPort = "7470";
constexpr std::string_view kKey = "simulated";
// Between a message's arrival and the node's looking at it, at most.
constexpr Time kSlowestTurn = 1 * kMicrosecond;
// Rounds between audits.
constexpr std::uint64_t kAuditEvery = 16;
// What messages with a WRITE, and with one of several lines, are at least; of the others most are
// shorter.
constexpr std::size_t kWriteBytes = 130;
constexpr std::size_t kLongWriteBytes = 320;
// Steps of the adversary are lines, those here are messages.
constexpr std::uint64_t kLinesOfMessage = 4;

class TcpSimulation final : public Simulation, private EventHandler, private remote::BatchWatcher {
 public:
  explicit TcpSimulation(const TcpSimOptions& options)
      : options_(options),
        network_(engine_, options.sockets),
        random_(base::mix64(options.sockets.seed, 1)) {}
  ~TcpSimulation() override {
    for (Node& node : nodes_) node.server.reset();
  }

  Status start() {
    nodes_.resize(options_.nodes);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      node.machine = &network_.add_machine(fmt::format("node-{}", i));
      node.machine->set_listener([this, i] { wake(i); });
      if (Status fresh = renew_memory(node); !fresh) return fresh;
      if (Status up = start(i); !up) return up;
    }
    return {};
  }

  Result<std::unique_ptr<Fabric>> open_client() override {
    Machine& machine = network_.add_machine(fmt::format("client-{}", ++machines_));
    auto fabric = tcp::open_tcp(client_options(machine));
    if (fabric) clients_[(*fabric)->client()].machine = &machine;
    return fabric;
  }
  Engine& engine() override { return engine_; }
  void set_instant(bool instant) override { network_.set_calm(instant); }
  void set_alone(bool alone) override { engine_.set_alone(alone); }

  void hold(ClientId id, std::optional<Time> for_time, bool drop) override {
    Client& client = clients_.at(id);
    client.machine->hold();
    const std::uint64_t holds = ++client.holds;
    if (!for_time) return client.machine->die(drop);
    engine_.at(time() + *for_time, [&client, holds] {
      if (client.holds == holds) client.machine->release();
    });
  }
  void release(ClientId id) override {
    Client& client = clients_.at(id);
    ++client.holds;
    client.machine->release();
  }
  void after_steps(ClientId id, std::uint64_t steps, Counted counted,
                   std::function<void()> action) override {
    const std::size_t least = counted == Counted::kAll      ? 1
                              : counted == Counted::kWrites ? kWriteBytes
                                                            : kLongWriteBytes;
    clients_.at(id).machine->after_sends(1 + steps / kLinesOfMessage, least, std::move(action));
  }
  void cut_link(ClientId id, NodeId node, Time for_time) override {
    strike(*clients_.at(id).machine, *nodes_[node].machine, for_time);
  }
  void stop_memory_node(NodeId id, Time for_time, bool lose_memory) override;
  // Lists of memory nodes stay as they are.
  void add_memory_node(Time /*noticed_within*/) override {}
  std::size_t memory_nodes() const override { return nodes_.size(); }
  bool is_fenced(ClientId client) const override;
  bool is_held(ClientId client) const override { return clients_.at(client).machine->held(); }
  bool nothing_under_way(ClientId id) const override {
    const Client& client = clients_.at(id);
    return client.batches == 0 && !network_.anything_from(*client.machine);
  }
  // Of segments it is not known here whether they hold verbs: neither can be told.
  std::optional<NodeId> busy_memory_node(ClientId /*client*/) const override {
    return std::nullopt;
  }
  bool haunts(ClientId /*client*/) const override { return false; }
  void visit(std::uint64_t steps) override;
  std::vector<std::string> left_behind() override;
  const Coverage& coverage() const override;
  void set_trace(TraceSink* sink) override { trace_ = sink; }

 private:
  struct Node {
    Machine* machine = nullptr;
    std::unique_ptr<node::NodeMemory> memory;
    std::unique_ptr<node::Server> server;  // nullptr: it does not run
    std::uint64_t serial = 0;              // of its process
    bool turning = false;                  // its next turn is in the queue
    Time look_at = 0;                      // and when it is to look around
    Time stands_until = 0;
    std::uint64_t turns = 0;
    std::uint32_t clients = 0;  // that it had let in then
    ClientId lost_until = 0;    // to this client, and those before, its memory is lost
  };
  struct Client {
    Machine* machine = nullptr;
    std::uint64_t holds = 0;
    std::uint64_t batches = 0;    // that have not ended
    mutable bool fenced = false;  // once it is: memory nodes do not remember all of them for ever
  };

  remote::Options client_options(Machine& machine) {
    remote::Options options;
    for (std::size_t i = 0; i < nodes_.size(); ++i) options.nodes.push_back(place_of(i));
    options.key = kKey;
    options.timeout = options_.timeout;
    options.native_masked_cas = options_.native_masked_cas;
    options.network = &machine;
    options.watcher = this;
    return options;
  }
  wire::Place place_of(std::size_t node) const {
    return {.host = nodes_[node].machine->name(), .port = std::string(kPort), .path = {}};
  }

  Status renew_memory(Node& node) const {
    auto memory = node::NodeMemory::make({.bytes = options_.node_bytes,
                                          .onchip_bytes = options_.onchip_bytes,
                                          .huge_pages = node::HugePages::kOff});
    if (!memory) return fail(memory.error());
    // Ids go on where they were, though the memory is lost: two clients with one id could not be
    // told apart here.
    if (node.memory != nullptr) memory->header().last_client = node.memory->header().last_client;
    node.memory = std::make_unique<node::NodeMemory>(std::move(*memory));
    return {};
  }
  Status start(std::size_t number);
  void wake(std::size_t number);
  void turn_at(std::size_t number, Time when);
  void happen(const Event& event) override;
  void posted(ClientId client) override { ++clients_[client].batches; }
  void ended(ClientId client, const task::Worker& worker, task::TimePoint posted_at,
             const Batch* batch) override;
  void add_counts(const node::ServerCounts& counts, Coverage& to) const;
  void strike(Machine& client, Machine& node, Time for_time);
  void storm(Machine& client, Machine& node, Time for_time);
  void audit(std::size_t number);
  void lose_memory(Node& node);
  bool lost_memory() const {
    return std::ranges::any_of(nodes_, [](const Node& node) { return node.lost_until != 0; });
  }

  const TcpSimOptions options_;
  Engine engine_;
  SocketNetwork network_;
  base::Random random_;
  std::vector<Node> nodes_;
  std::map<ClientId, Client> clients_;
  std::size_t machines_ = 0;
  Coverage former_;  // of servers that do not run any more
  Coverage seen_;    // by clients
  mutable Coverage coverage_;
  TraceSink* trace_ = nullptr;
  std::uint64_t last_batch_ = 0;
  std::vector<std::string> problems_;
};

// ---- Memory nodes ----

Status TcpSimulation::start(std::size_t number) {
  Node& node = nodes_[number];
  node::ServerOptions options;
  options.listen = {place_of(number)};
  options.key = kKey;
  options.spin = std::chrono::microseconds(0);
  options.handshake_time = options_.handshake_time;
  options.remembered = options_.remembered;
  options.network = node.machine;
  auto server = node::Server::open(*node.memory, options);
  if (!server) return fail(server.error());
  node.server = std::move(*server);
  wake(number);
  return {};
}

void TcpSimulation::wake(std::size_t number) {
  Node& node = nodes_[number];
  if (node.turning || node.server == nullptr) return;
  node.turning = true;
  turn_at(number, std::max(engine_.time() + 1 + random_.below(kSlowestTurn), node.stands_until));
}

void TcpSimulation::turn_at(std::size_t number, Time when) {
  engine_.at(when, {.handler = this, .serial = nodes_[number].serial, .detail = number});
}

void TcpSimulation::happen(const Event& event) {
  const std::size_t number = event.detail;
  Node& node = nodes_[number];
  if (node.serial != event.serial || node.server == nullptr) return;
  if (engine_.time() < node.stands_until) return turn_at(number, node.stands_until);
  node.turning = false;
  const std::optional<task::Duration> look = node.server->turn();
  // Always when someone has come or gone.
  const std::uint32_t clients = node.server->counts().clients;
  if (++node.turns % kAuditEvery == 0 || clients != node.clients) audit(number);
  node.clients = clients;
  if (node.machine->any_ready()) return wake(number);
  if (!look || node.look_at > engine_.time()) return;
  node.look_at = engine_.time() + static_cast<Time>(look->count()) * kNanosecond;
  turn_at(number, node.look_at);
}

void TcpSimulation::stop_memory_node(NodeId id, Time for_time, bool lose_memory) {
  Node& node = nodes_[id];
  if (node.server == nullptr) {  // it is away already
    if (lose_memory) this->lose_memory(node);
    return;
  }
  // Its process may have been stopped for a while; or it ends; or its machine does.
  const std::uint64_t draw = random_.below(5);
  if (draw == 0 && !lose_memory) {
    node.stands_until = std::max(node.stands_until, time() + for_time);
    return;
  }
  audit(id);
  add_counts(node.server->counts(), former_);
  if (draw < 3) {
    node.machine->kill_process();
  } else {
    node.machine->switch_off();
  }
  node.server.reset();
  ++node.serial;
  node.turning = false;
  node.look_at = 0;
  if (lose_memory) this->lose_memory(node);
  engine_.at(time() + for_time, [this, id] {
    nodes_[id].machine->switch_on();
    if (const Status up = start(id); !up) problems_.push_back(up.error().message());
  });
}

void TcpSimulation::lose_memory(Node& node) {
  if (!clients_.empty()) node.lost_until = clients_.rbegin()->first;
  if (const Status fresh = renew_memory(node); !fresh) {
    problems_.push_back(fresh.error().message());
  }
}

// ---- Clients ----

// A memory node that has lost the memory that a client knew lets it in no more.
bool TcpSimulation::is_fenced(ClientId id) const {
  const Client& client = clients_.at(id);
  client.fenced |= std::ranges::all_of(nodes_, [id](const Node& node) {
    const node::Header& header = node.memory->header();
    return id <= std::max(node.lost_until, header.join_floor) ||
           std::ranges::count(header.fenced, id) > 0;
  });
  return client.fenced;
}

void TcpSimulation::ended(ClientId id, const task::Worker& worker, task::TimePoint posted_at,
                          const Batch* batch) {
  --clients_[id].batches;
  if (batch == nullptr) return;
  ++last_batch_;
  seen_.failed += batch->status() ? 0 : 1;
  for (const Verb& verb : batch->verbs()) {
    const bool unknown = is_atomic(verb.kind) && verb.outcome == Outcome::kIndeterminate;
    seen_.unknown_atomics += unknown ? 1 : 0;
    if (trace_ == nullptr) continue;
    trace_->verb({.client = id,
                  .worker = worker.seat(),
                  .batch = last_batch_,
                  .posted = static_cast<Time>(posted_at.time_since_epoch().count()) * kNanosecond,
                  .ended = time(),
                  .verb = &verb,
                  .account = batch->cost()});
  }
}

// ---- Connections ----

void TcpSimulation::strike(Machine& client, Machine& node, Time for_time) {
  bool struck = true;
  switch (random_.below(10)) {
    case 0:
    case 1:
      network_.cut(client, node, for_time);
      break;
    case 2:
      struck = network_.reset(client, node);
      break;
    case 3:
      struck = network_.half_close(client, node);
      break;
    case 4:
      struck = network_.end_silently(client, node, for_time);
      break;
    case 5:  // and what is to come instead of it does not get there either
      network_.hang_connects(client, node, for_time);
      struck = network_.reset(client, node);
      break;
    case 6:
    case 7:
      storm(client, node, for_time);
      break;
    default:
      struck = network_.hold_one_way(client, node, for_time);
      break;
  }
  if (!struck) network_.cut(client, node, for_time);
}

// Connection after connection breaks, and new ones come late and overtake each other: so a client
// has some of several generations on their way.
void TcpSimulation::storm(Machine& client, Machine& node, Time for_time) {
  network_.slow_connects(client, node, for_time, for_time / 2);
  for (std::uint64_t i = 3 + random_.below(12); i > 0; --i) {
    const bool hold = random_.below(4) == 0;
    engine_.at(time() + random_.below(for_time), [this, &client, &node, for_time, hold] {
      if (hold) {
        network_.hold_one_way(client, node, for_time / 2);
      } else {
        network_.reset(client, node);
      }
    });
  }
}

// ---- Those who die on their way in ----

void TcpSimulation::visit(std::uint64_t steps) {
  Machine& machine = network_.add_machine(fmt::format("visitor-{}", ++machines_));
  const bool silently = random_.below(2) == 0;
  machine.after_sends(steps, 1, [&machine, silently] { machine.die(silently); });
  auto fabric = tcp::open_tcp(client_options(machine));
  if (!machine.off()) machine.die(silently);
}

// ---- Looking at what came of it ----

void TcpSimulation::audit(std::size_t number) {
  for (std::string& problem : nodes_[number].server->audit()) {
    problems_.push_back(fmt::format("memory node {}: {}", number, problem));
  }
}

std::vector<std::string> TcpSimulation::left_behind() {
  // Until everyone has noticed that everyone is gone, and the memory nodes have forgotten them.
  const Time noticed = 4 * options_.sockets.silence;
  const auto remembered = static_cast<Time>(options_.remembered.count()) * kMillisecond;
  engine_.run_until([] { return false; }, time() + noticed + 2 * remembered);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].server == nullptr) continue;
    audit(i);
    const node::ServerCounts& counts = nodes_[i].server->counts();
    if (const std::uint32_t open = counts.open_connections; open > 0) {
      problems_.push_back(
          fmt::format("memory node {} has {} connections, and nobody is there", i, open));
    }
    for (const std::uint32_t client : nodes_[i].memory->header().admitted) {
      // Those who die where memory was lost, others may never find dead.
      if (client == 0 || lost_memory()) continue;
      problems_.push_back(
          fmt::format("memory node {} remembers client {}, who is not there any more", i, client));
    }
  }
  return std::exchange(problems_, {});
}

void TcpSimulation::add_counts(const node::ServerCounts& counts, Coverage& to) const {
  to.batches += counts.batches;
  to.verbs += counts.reads + counts.writes + counts.compare_swaps + counts.fetch_adds;
  to.fenced += counts.fenced;
  to.generations += counts.renewed;
  to.outdated += counts.outdated;
  to.forgotten += counts.forgotten;
}

const Coverage& TcpSimulation::coverage() const {
  coverage_ = former_;
  for (const Node& node : nodes_) {
    if (node.server != nullptr) add_counts(node.server->counts(), coverage_);
  }
  coverage_ += seen_;
  coverage_.sockets = network_.coverage();
  coverage_.delayed = coverage_.sockets.held_segments;
  return coverage_;
}

}  // namespace

Result<std::unique_ptr<Simulation>> make_tcp_simulation(const TcpSimOptions& options) {
  auto simulation = std::make_unique<TcpSimulation>(options);
  if (Status started = simulation->start(); !started) return fail(started.error());
  return simulation;
}

}  // namespace pando::fabric::sim
