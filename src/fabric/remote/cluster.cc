#include "fabric/remote/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace pando::fabric::remote {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(500);

// The first that a socket can reach, of another machine before this one's own. With TLS none of
// this one's own: Unix sockets go without, and a record must not take it away.
Result<wire::Place> reachable(const etcd::MemoryNodeRecord& record, bool tls) {
  const auto remote = std::ranges::find_if_not(record.places, &wire::Place::local);
  if (remote != record.places.end()) return *remote;
  if (record.places.empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("memory node {} is registered without an address", record.id));
  }
  if (!tls) return record.places.front();
  return fail(ErrorCode::kUnavailable,
              fmt::format("memory node {} is registered at {} alone, a Unix socket, which goes "
                          "without the TLS that tls=on asks for; start it with --listen HOST:PORT",
                          record.id, record.places.front().to_string()));
}

Error explained(const Error& error, const etcd::RegistryOptions& registry, wire::Purpose purpose) {
  if (error.code() != ErrorCode::kUnavailable) return error;
  return Error(error.code(),
               fmt::format("{}; the memory nodes of cluster '{}' cannot be found without it: start "
                           "etcd, or name them, as in {}:10.0.0.1:7470,10.0.0.2:7470",
                           error.detail(), registry.cluster,
                           purpose == wire::Purpose::kRdma ? "rdma" : "tcp"));
}

}  // namespace

Result<std::shared_ptr<Cluster>> Cluster::open(const Options& options, wire::Purpose purpose,
                                               const Caps& caps, Inspect inspect) {
  if (options.nodes.empty() && !options.registry) {
    return fail(ErrorCode::kInvalidArgument, "no memory node is given");
  }
  std::shared_ptr<Cluster> cluster(new Cluster(options, purpose, caps, std::move(inspect)));
  if (options.tls) {
    auto tls = wire::TlsContext::make(options.key);
    if (!tls) return fail(tls.error());
    cluster->tls_ = std::move(*tls);
  }
  const Status opened = options.registry ? cluster->open_registry() : cluster->open_list();
  if (!opened) return fail(opened.error());
  return cluster;
}

Status Cluster::open_list() {
  const base::MutexLock lock(look_mutex_);
  for (std::size_t i = 0; i < options_.nodes.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    if (Status in = come_in(id, 0, options_.nodes[i]); !in) return in;
  }
  return {};
}

Status Cluster::open_registry() {
  registry_.emplace(*options_.registry);
  const std::string& name = options_.registry->cluster;
  std::optional<Error> left_out;
  const auto records = registry_->memory_nodes(&left_out);
  if (!records) return fail(explained(records.error(), *options_.registry, purpose_));
  if (records->empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("etcd knows no memory node of cluster '{}' that is running; start some "
                            "with pando memnode --etcd {} --cluster {}",
                            name, fmt::join(options_.registry->endpoints, ","), name));
  }
  if (records->front().id != 0) {
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("memory node 0 of cluster '{}', which has the pool's tables, is not "
                    "registered with etcd now; start it with the memory that it had{}{}",
                    name, left_out ? ". Left out: " : "", left_out ? left_out->detail() : ""));
  }
  const base::MutexLock lock(look_mutex_);
  if (Status in = meet(records->front()); !in) return in;  // it gives the client its id
  // Whether the others are needed, the pool knows: it asks again for those.
  for (const etcd::MemoryNodeRecord& record : *records) (void)meet(record);
  watcher_ = std::thread([this] { watch(); });
  return {};
}

// ---- Nodes ----

Result<wire::ControlLink> Cluster::connect(const wire::Place& place,
                                           const wire::Proof& wanted) const {
  return wire::ControlLink::open(place, options_.key, options_.cluster, wanted, options_.timeout,
                                 tls_.get(), *options_.network);
}

// The first node gives the client its id; the others get to know it.
Status Cluster::come_in(NodeId id, std::uint64_t life, const wire::Place& place) {
  auto node = std::make_unique<MemoryNode>(id, life, place);
  Result<wire::ControlLink> link = connect(place, proof(*node, purpose_, true));
  if (!link && purpose_ == wire::Purpose::kRdma && link.error().code() == ErrorCode::kCorrupt) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("memory node at {} is of a version that knows no RDMA: bring it up to "
                            "date",
                            place.to_string()));
  }
  if (!link) return fail(link.error());
  const wire::Welcome welcome = link->welcome();
  node->life = welcome.life;
  Status fits = check_new(*node, welcome);
  if (fits && inspect_) fits = inspect_(id, *link);
  if (!fits) {
    (void)link->leave(options_.timeout);
    return fits;
  }
  if (nodes_.empty()) {
    client_ = welcome.client;
    caps_.onchip_bytes = welcome.onchip_bytes;
  } else if (!registry_) {
    caps_.onchip_bytes = std::min(caps_.onchip_bytes, welcome.onchip_bytes);
  }
  MemoryNode& published = *node;
  {
    const base::MutexLock lock(published.mutex);
    published.control.emplace(std::move(*link));
  }
  publish(std::move(node), welcome.memory_bytes);
  // After it can be seen: whoever says now that the client stays, says it there too.
  return announce_stay(published);
}

Status Cluster::check_new(const MemoryNode& node, const wire::Welcome& welcome) const {
  for (const auto& other : nodes_) {
    if (other->life != node.life) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("memory nodes {} and {} are one and the same, {}", other->id, node.id,
                            node.place().to_string()));
  }
  // Endpoints know what on-chip memory there is at every node, and go by it.
  if (registry_ && !nodes_.empty() && welcome.onchip_bytes < caps_.onchip_bytes) {
    return fail(
        ErrorCode::kIncompatible,
        fmt::format("memory node {} at {} has {} bytes of on-chip memory, less than the {} "
                    "that others have; start it with the same --onchip",
                    node.id, node.place().to_string(), welcome.onchip_bytes, caps_.onchip_bytes));
  }
  return {};
}

void Cluster::publish(std::unique_ptr<MemoryNode> node, std::uint64_t bytes) {
  const View* const before = view_.load();
  auto after = before != nullptr ? std::make_unique<View>(*before) : std::make_unique<View>();
  const std::size_t count = std::max<std::size_t>(after->sizes.size(), node->id + std::size_t{1});
  after->sizes.resize(count);
  after->nodes.resize(count);
  after->sizes[node->id] = bytes;
  after->nodes[node->id] = node.get();
  nodes_.push_back(std::move(node));
  views_.push_back(std::move(after));
  view_.store(views_.back().get());
}

// ---- The registry ----

Status Cluster::look() {
  if (!registry_) return {};
  const base::MutexLock lock(look_mutex_);
  const auto records = registry_->memory_nodes();
  if (!records) return fail(records.error());
  Status all;
  for (const etcd::MemoryNodeRecord& record : *records) {
    if (Status met = meet(record); !met && all) all = met;
  }
  return all;
}

Status Cluster::meet(const etcd::MemoryNodeRecord& record) {
  const Result<wire::Place> place = reachable(record, options_.tls);
  if (!place) return fail(place.error());
  const auto known =
      std::ranges::find(nodes_, record.id, [](const auto& node) { return node->id; });
  if (known == nodes_.end()) return come_in(record.id, record.life, *place);
  // It may have come back elsewhere. One with another memory is not it, whatever etcd says.
  if ((*known)->life != record.life) return {};
  (*known)->move_to(*place);
  return announce_stay(**known);
}

void Cluster::watch() {
  for (;;) {
    {
      const auto until = std::chrono::steady_clock::now() + kBetweenLooks;
      const base::MutexLock lock(stop_mutex_);
      while (!stopping_ && stop_.wait_until(stop_mutex_, until)) continue;
      if (stopping_) return;
    }
    (void)look();  // with etcd gone, what is known stays
  }
}

Cluster::~Cluster() {
  if (watcher_.joinable()) {
    {
      const base::MutexLock lock(stop_mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    registry_->client().cancel();
    watcher_.join();
  }
  // Whoever does not hear it forgets this client some time after its connections have ended, or
  // fences it when others find it dead.
  for (const auto& node : nodes_) {
    if (node->control) (void)node->control->leave(options_.timeout);
  }
}

wire::Proof Cluster::proof(const MemoryNode& node, wire::Purpose purpose, bool joins) const {
  return {.client = client_,
          .generation = 0,
          .purpose = purpose,
          .joins = static_cast<std::uint8_t>(joins ? 1 : 0),
          .life = node.life};
}

wire::ClientHandshake Cluster::handshake(NodeId id, std::uint32_t generation) {
  wire::Proof wanted = proof(memory_node(id), purpose_, false);
  wanted.generation = generation;
  return {options_.key, options_.cluster, wanted};
}

Status Cluster::stay(bool stays) {
  stays_.store(stays);  // nodes that come later are told when they come
  Status all;
  for (MemoryNode* const node : view_.load()->nodes) {
    if (node == nullptr) continue;
    if (Status sent = announce_stay(*node); !sent && all) all = sent;
  }
  return all;
}

// Whether the client stays, unless the node knows.
Status Cluster::announce_stay(MemoryNode& node) {
  const base::MutexLock lock(node.mutex);
  const bool stays = stays_.load();
  if (node.announced == stays) return {};
  node.announced.reset();
  Status sent = send_stay(node, stays);
  if (sent) node.announced = stays;
  return sent;
}

Status Cluster::send_stay(MemoryNode& node, bool stays) {
  Status sent;
  if (node.control) sent = node.control->stay(stays, options_.timeout);
  if (node.control && (sent || sent.error().code() != ErrorCode::kUnavailable)) return sent;
  // The connection broke, as connections do.
  node.control.reset();
  Result<wire::ControlLink> link =
      connect(node.place(), proof(node, wire::Purpose::kControl, false));
  if (!link) return fail(link.error());
  node.control.emplace(std::move(*link));
  return node.control->stay(stays, options_.timeout);
}

}  // namespace pando::fabric::remote
