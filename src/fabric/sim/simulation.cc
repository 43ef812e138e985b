#include "fabric/sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/parse.h"
#include "fabric/sim/cluster.h"

namespace pando::fabric::sim {
namespace {

class SimFabric final : public Fabric {
 public:
  explicit SimFabric(std::shared_ptr<Cluster> cluster)
      : cluster_(std::move(cluster)), client_(cluster_->join()) {}
  ~SimFabric() override { client_.present = false; }
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  const Caps& caps() const override { return cluster_->caps; }
  ClientId client() const override { return client_.id; }
  std::size_t memory_node_count() const override { return client_.known_nodes; }
  std::uint64_t memory_node_size(NodeId node) const override {
    return node < memory_node_count() ? cluster_->sizes[node] : 0;
  }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    if (&worker.clock() != &cluster_->engine) {
      return fail(ErrorCode::kInvalidArgument,
                  "a worker of a simulated fabric goes by the simulation's clock");
    }
    return std::make_unique<SimEndpoint>(cluster_, client_, worker);
  }
  Result<std::unique_ptr<Fabric>> attach() override {
    return std::make_unique<SimFabric>(cluster_);
  }
  task::Clock& clock() override { return cluster_->engine; }
  bool may_grow() const override { return cluster_->grows; }
  Status look_for_memory_nodes() override {
    client_.known_nodes = cluster_->nodes.size();
    return {};
  }

 private:
  std::shared_ptr<Cluster> cluster_;
  ClientState& client_;
};

Status check(const SimOptions& options) {
  if (options.nodes == 0 || options.nodes > SimOptions::kMaxNodes) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("nodes: {} is not between 1 and {}",
                                                         options.nodes, SimOptions::kMaxNodes));
  }
  const std::uint64_t node_bytes = options.bytes / options.nodes;
  if (node_bytes < SimOptions::kMinNodeBytes || node_bytes > Address::kOnChip) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("size: {} over {} memory nodes; each needs {} at least and {} at most",
                            base::format_size(options.bytes), options.nodes,
                            base::format_size(SimOptions::kMinNodeBytes),
                            base::format_size(Address::kOnChip)));
  }
  if (options.onchip_bytes.value_or(0) % kLineBytes != 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("onchip: {} is not a multiple of {} bytes",
                                                         *options.onchip_bytes, kLineBytes));
  }
  return {};
}

Result<std::shared_ptr<Cluster>> make_cluster(const SimOptions& options) {
  if (Status valid = check(options); !valid) return fail(valid.error());
  const auto preset = find_preset(options.preset);
  if (!preset) return fail(preset.error());
  auto cluster = std::make_shared<Cluster>(options, **preset);
  for (const MemoryNode& node : cluster->nodes) {
    for (const Mapping* mapping : {&node.memory, &node.onchip}) {
      if (mapping->problem() == 0) continue;
      return fail(ErrorCode::kOutOfMemory,
                  fmt::format("cannot map a memory node: {}",
                              std::generic_category().message(mapping->problem())));
    }
  }
  cluster->network =
      options.adversary ? make_adversary(*cluster, *options.adversary) : make_model(*cluster);
  return cluster;
}

NicUse use_of(const Nic& nic, Time elapsed) {
  const auto part = [elapsed](const Queue& queue) {
    return elapsed == 0 ? 0.0 : static_cast<double>(queue.busy()) / static_cast<double>(elapsed);
  };
  return {.verbs = part(nic.verbs),
          .out = part(nic.out),
          .in = part(nic.in),
          .dma = std::max(part(nic.fetch), part(nic.store)),
          .served = nic.served};
}

}  // namespace

Coverage& Coverage::operator+=(const Coverage& other) {
  batches += other.batches;
  verbs += other.verbs;
  torn += other.torn;
  delayed += other.delayed;
  failed += other.failed;
  late += other.late;
  fenced += other.fenced;
  unfenced += other.unfenced;
  split_atomics += other.split_atomics;
  lost_to_atomics += other.lost_to_atomics;
  unknown_atomics += other.unknown_atomics;
  sockets += other.sockets;
  generations += other.generations;
  outdated += other.outdated;
  forgotten += other.forgotten;
  return *this;
}

Result<std::unique_ptr<Simulation>> Simulation::make(const SimOptions& options) {
  auto cluster = make_cluster(options);
  if (!cluster) return fail(cluster.error());
  return std::unique_ptr<Simulation>(new Simulation(std::move(*cluster)));
}

Simulation::Simulation(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}
Simulation::Simulation() = default;
Simulation::~Simulation() = default;

std::unique_ptr<Fabric> Simulation::attach() { return std::make_unique<SimFabric>(cluster_); }
Engine& Simulation::engine() { return cluster_->engine; }
void Simulation::set_instant(bool instant) { cluster_->instant = instant; }

// ---- The model ----

void Simulation::reset_use() {
  for (MemoryNode& node : cluster_->nodes) node.nic.forget();
  for (const auto& client : cluster_->clients) client->nic.forget();
  cluster_->use_from = time();
}

NicUse Simulation::use_of_memory_node(NodeId node) const {
  return use_of(cluster_->nodes[node].nic, cluster_->engine.time() - cluster_->use_from);
}

NicUse Simulation::use_of_client(ClientId client) const {
  return use_of(cluster_->find(client)->nic, cluster_->engine.time() - cluster_->use_from);
}

const Preset& Simulation::preset() const { return cluster_->preset; }

// ---- The adversary ----

void Simulation::hold(ClientId id, std::optional<Time> for_time, bool drop) {
  ClientState& client = *cluster_->find(id);
  client.held = true;
  const std::uint64_t holds = ++client.holds;
  for (const auto seat : client.seats) cluster_->engine.hold(seat);
  if (drop) cluster_->network->drop(client);
  if (!for_time) return;
  cluster_->engine.at(time() + *for_time, [&client, holds, &engine = cluster_->engine] {
    if (client.holds != holds || !client.held) return;
    client.held = false;
    for (const auto seat : client.seats) engine.release(seat);
  });
}

void Simulation::release(ClientId id) {
  ClientState& client = *cluster_->find(id);
  if (!client.held) return;
  client.held = false;
  for (std::size_t node = 0; node < cluster_->nodes.size(); ++node) {
    cluster_->shut_out(client, static_cast<NodeId>(node));
  }
  cluster_->fence(client);
  for (const auto seat : client.seats) cluster_->engine.release(seat);
}

void Simulation::after_steps(ClientId id, std::uint64_t steps, Counted counted,
                             std::function<void()> action) {
  cluster_->find(id)->triggers.push_back({steps, counted, std::move(action)});
}

void Simulation::cut_link(ClientId id, NodeId node, Time for_time) {
  ClientState& client = *cluster_->find(id);
  client.cut_until[node] = std::max(client.cut_until[node], time() + for_time);
  cluster_->network->break_link(client, node);
}

void Simulation::stop_memory_node(NodeId id, Time for_time, bool lose_memory) {
  MemoryNode& node = cluster_->nodes[id];
  if (!node.up) return;
  node.up = false;
  if (lose_memory) {
    ++node.incarnation;
    node.memory.clear();
    node.onchip.clear();
  }
  for (const auto& client : cluster_->clients) cluster_->network->break_link(*client, id);
  cluster_->engine.at(time() + for_time, [&node] { node.up = true; });
}

void Simulation::add_memory_node(Time noticed_within) { cluster_->grow(noticed_within); }

std::size_t Simulation::memory_nodes() const { return cluster_->nodes.size(); }

bool Simulation::is_fenced(ClientId client) const { return cluster_->find(client)->fenced; }

bool Simulation::is_held(ClientId client) const { return cluster_->find(client)->held; }

bool Simulation::nothing_under_way(ClientId id) const {
  const ClientState& client = *cluster_->find(id);
  return client.flights == nullptr && !cluster_->network->haunts(client);
}

std::optional<NodeId> Simulation::busy_memory_node(ClientId id) const {
  for (const Flight* flight = cluster_->find(id)->flights; flight != nullptr;
       flight = flight->next) {
    for (const Verb& verb : flight->batch->verbs()) {
      if (changes_memory(verb.kind) && verb.outcome == Outcome::kPending) {
        return verb.target.node();
      }
    }
  }
  return std::nullopt;
}

bool Simulation::haunts(ClientId client) const {
  return cluster_->network->haunts(*cluster_->find(client));
}

const Coverage& Simulation::coverage() const { return cluster_->coverage; }
void Simulation::set_trace(TraceSink* sink) { cluster_->trace = sink; }

Result<std::unique_ptr<Fabric>> open_sim(const SimOptions& options) {
  auto cluster = make_cluster(options);
  if (!cluster) return fail(cluster.error());
  return std::make_unique<SimFabric>(std::move(*cluster));
}

}  // namespace pando::fabric::sim
