#include "fabric/mapped/mapped.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "fabric/local_endpoint.h"
#include "fabric/node/memory.h"
#include "fabric/wire/control.h"

namespace pando::fabric::mapped {
namespace {

using node::NodeMemory;
using node::SharedLineMemory;
using wire::ControlLink;

// What this process has of the memory nodes, shared by its endpoints. Thread-safe.
class Cluster {
 public:
  static Result<std::shared_ptr<Cluster>> open(const MappedOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const MappedOptions& options() const { return options_; }
  const Caps& caps() const { return caps_; }
  ClientId client() const { return client_; }
  std::span<const std::uint64_t> sizes() const { return sizes_; }
  const NodeMemory& memory(NodeId id) const { return *nodes_[id]->memory; }

  // A connection with a redo slot, for a thread. The redo slot is the thread's until the link ends.
  Result<ControlLink> open_redo_slot(NodeId id) { return come_in(id, false); }
  // Whether the node's process is there, with the memory that is mapped here.
  Status usable(NodeId id) const;
  // So it is with all nodes: cheaper than to ask for each.
  bool all_usable() const { return !any_gone_.load(std::memory_order_acquire); }
  Task<Status> fence(task::Worker& worker, ClientId client);
  Status stay(bool stays);

 private:
  struct Node {
    wire::Place place;
    std::optional<NodeMemory> memory;
    std::uint64_t life = 0;
    base::Mutex mutex;
    std::optional<ControlLink> link PANDO_GUARDED_BY(mutex);
    std::uint64_t links PANDO_GUARDED_BY(mutex) = 0;  // that there have been
    int socket = -1;  // the link's; the watcher's, who makes new links, once it runs
    std::atomic<bool> gone{false};
    std::atomic<bool> lost{false};
  };

  explicit Cluster(const MappedOptions& options) : options_(options) {}
  Result<ControlLink> come_in(NodeId id, bool joins);
  Status join(NodeId id);
  void watch();
  void come_back(NodeId id);
  Task<Status> fence_at(task::Worker& worker, NodeId id, ClientId client);

  const MappedOptions options_;
  Caps caps_;
  ClientId client_ = 0;
  std::atomic<bool> stays_{false};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::uint64_t> sizes_;
  std::atomic<bool> any_gone_{false};  // while any node is, or was a moment ago
  int stop_ = -1;
  std::thread watcher_;
};

Result<std::shared_ptr<Cluster>> Cluster::open(const MappedOptions& options) {
  std::shared_ptr<Cluster> cluster(new Cluster(options));
  for (const wire::Place& place : options.nodes) {
    if (!place.local()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no Unix socket; mapped memory is of this machine, as in "
                              "unix:/run/pando/0.sock",
                              place.to_string()));
    }
    cluster->nodes_.push_back(std::make_unique<Node>());
    cluster->nodes_.back()->place = place;
  }
  cluster->caps_ = {
      .line_atomic = true, .masked_cas = options.native_masked_cas, .completes_inline = true};
  for (std::size_t i = 0; i < options.nodes.size(); ++i) {
    if (Status in = cluster->join(static_cast<NodeId>(i)); !in) return fail(in.error());
  }
  cluster->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (cluster->stop_ < 0) return fail(ErrorCode::kUnavailable, "the system gives no descriptors");
  cluster->watcher_ = std::thread([self = cluster.get()] { self->watch(); });
  return cluster;
}

Cluster::~Cluster() {
  if (watcher_.joinable()) {
    const std::uint64_t one = 1;
    (void)!write(stop_, &one, sizeof(one));
    watcher_.join();
  }
  if (stop_ >= 0) close(stop_);
  for (const auto& node : nodes_) {
    if (node->link && !node->gone) (void)node->link->leave(options_.timeout);
  }
}

Result<ControlLink> Cluster::come_in(NodeId id, bool joins) {
  const Node& node = *nodes_[id];
  const wire::Proof wanted{.client = client_,
                           .generation = 1,
                           .purpose = wire::Purpose::kMapping,
                           .joins = static_cast<std::uint8_t>(joins ? 1 : 0),
                           .life = node.life};
  return ControlLink::open(node.place, options_.key, options_.cluster, wanted, options_.timeout);
}

Status Cluster::join(NodeId id) {
  Node& node = *nodes_[id];
  Result<ControlLink> link = come_in(id, true);
  if (!link) return fail(link.error());
  const int descriptor = link->take_descriptor();
  if (descriptor < 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("memory node at {} gives no memory", node.place.to_string()));
  }
  Result<NodeMemory> memory = NodeMemory::map(descriptor);
  if (!memory) return fail(memory.error());
  client_ = link->welcome().client;
  node.life = link->welcome().life;
  for (std::size_t i = 0; i < id; ++i) {
    if (nodes_[i]->life != node.life) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("memory nodes {} and {} are one and the same", i, id));
  }
  sizes_.push_back(memory->bytes());
  const std::uint32_t onchip = memory->onchip_bytes();
  caps_.onchip_bytes = id == 0 ? onchip : std::min(caps_.onchip_bytes, onchip);
  node.memory.emplace(std::move(*memory));
  const base::MutexLock lock(node.mutex);
  node.socket = node.link.emplace(std::move(*link)).socket().get();
  return {};
}

Status Cluster::usable(NodeId id) const {
  const Node& node = *nodes_[id];
  if (!node.gone.load(std::memory_order_acquire)) [[likely]]
    return {};
  if (node.lost) {
    return fail(ErrorCode::kDataLost, fmt::format("memory node {} at {} has lost its memory", id,
                                                  node.place.to_string()));
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("memory node {} at {} is not running", id, node.place.to_string()));
}

// A node's process says nothing of itself: only the end of its connection can be heard.
void Cluster::watch() {
  constexpr int kBetweenAttempts = 50;  // milliseconds
  for (;;) {
    std::vector<pollfd> sockets = {{.fd = stop_, .events = POLLIN, .revents = 0}};
    bool any_awaited = false;
    for (const auto& node : nodes_) {
      const int socket = node->gone ? -1 : node->socket;
      sockets.push_back({.fd = socket, .events = POLLRDHUP, .revents = 0});
      any_awaited |= node->gone && !node->lost;
    }
    poll(sockets.data(), sockets.size(), any_awaited ? kBetweenAttempts : -1);
    if (sockets[0].revents != 0) return;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (sockets[i + 1].revents != 0) {
        nodes_[i]->gone.store(true, std::memory_order_release);
        any_gone_.store(true, std::memory_order_release);
      }
      if (nodes_[i]->gone && !nodes_[i]->lost) come_back(static_cast<NodeId>(i));
    }
    any_gone_.store(std::ranges::any_of(nodes_, [](const auto& node) { return node->gone.load(); }),
                    std::memory_order_release);
  }
}

void Cluster::come_back(NodeId id) {
  Node& node = *nodes_[id];
  Result<ControlLink> link = come_in(id, false);
  if (!link) {
    if (link.error().code() == ErrorCode::kDataLost) node.lost = true;
    return;
  }
  if (stays_.load() && !link->stay(true, options_.timeout)) return;
  const base::MutexLock lock(node.mutex);
  node.socket = node.link.emplace(std::move(*link)).socket().get();
  ++node.links;
  node.gone.store(false, std::memory_order_release);
}

Status Cluster::stay(bool stays) {
  stays_.store(stays);
  Status all;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Status sent = usable(static_cast<NodeId>(i));
    Node& node = *nodes_[i];
    const base::MutexLock lock(node.mutex);
    if (sent) sent = node.link->stay(stays, options_.timeout);
    if (!sent && all) all = sent;
  }
  return all;
}

Task<Status> Cluster::fence(task::Worker& worker, ClientId client) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i]->lost) continue;  // memory that is gone cannot be harmed
    if (Status done = co_await fence_at(worker, static_cast<NodeId>(i), client); !done) {
      co_return done;
    }
  }
  co_return Status{};
}

// The node's process may stand still: who asks it must not, so the answer is looked for now and
// then.
Task<Status> Cluster::fence_at(task::Worker& worker, NodeId id, ClientId client) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
  if (Status there = usable(id); !there) co_return there;
  Node& node = *nodes_[id];
  std::uint64_t link = 0;
  std::uint64_t question = 0;
  {
    const base::MutexLock lock(node.mutex);
    link = node.links;
    question = node.link->begin_fence(client);
  }
  for (const task::TimePoint until = worker.now() + options_.timeout; worker.now() < until;) {
    {
      const base::MutexLock lock(node.mutex);
      if (node.links != link) break;
      if (const std::optional<Status> done = node.link->answer(question)) co_return *done;
    }
    co_await worker.sleep_for(kBetweenLooks);
  }
  co_return fail(ErrorCode::kUnavailable,
                 fmt::format("memory node {} at {} does not answer", id, node.place.to_string()));
}

// One endpoint's sight of the nodes, with its redo slots.
class View {
 public:
  explicit View(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  Status take_redo_slots() {
    for (std::size_t i = 0; i < cluster_->sizes().size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      Result<ControlLink> link = cluster_->open_redo_slot(id);
      if (!link) return fail(link.error());
      const std::size_t slot = link->welcome().redo_slot;
      if (slot >= node::kMaxRedoSlots) {
        return fail(ErrorCode::kCorrupt, "wire: a redo slot that is not there");
      }
      links_.push_back(std::move(*link));
      parts_.push_back(cluster_->memory(id).main_lines(slot));
      parts_.push_back(cluster_->memory(id).onchip_lines(slot));
    }
    return {};
  }

  const Caps& caps() const { return cluster_->caps(); }
  std::span<const std::uint64_t> sizes() const { return cluster_->sizes(); }
  const SharedLineMemory& part_of(Address address) const { return parts_[address.part()]; }
  Task<Status> fence(task::Worker& worker, ClientId client) {
    return cluster_->fence(worker, client);
  }
  Status usable(const Batch& batch) const {
    if (cluster_->all_usable()) [[likely]]
      return {};
    for (const Verb& verb : batch.verbs()) {
      if (Status there = cluster_->usable(verb.target.node()); !there) return there;
    }
    return {};
  }

 private:
  std::shared_ptr<Cluster> cluster_;
  std::vector<ControlLink> links_;       // by node: the redo slot is ours as long as it lives
  std::vector<SharedLineMemory> parts_;  // by Address::part()
};

class MappedFabric final : public Fabric {
 public:
  explicit MappedFabric(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  const Caps& caps() const override { return cluster_->caps(); }
  ClientId client() const override { return cluster_->client(); }
  std::size_t memory_node_count() const override { return cluster_->sizes().size(); }
  std::uint64_t memory_node_size(NodeId node) const override {
    return node < memory_node_count() ? cluster_->sizes()[node] : 0;
  }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    View view(cluster_);
    if (Status taken = view.take_redo_slots(); !taken) return fail(taken.error());
    return std::make_unique<LocalEndpoint<View>>(std::move(view), worker);
  }
  Status stay(bool stays) override { return cluster_->stay(stays); }
  Result<std::unique_ptr<Fabric>> attach() override { return open_mapped(cluster_->options()); }

 private:
  std::shared_ptr<Cluster> cluster_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> open_mapped(const MappedOptions& options) {
  Result<std::shared_ptr<Cluster>> cluster = Cluster::open(options);
  if (!cluster) return fail(cluster.error());
  return std::make_unique<MappedFabric>(std::move(*cluster));
}

}  // namespace pando::fabric::mapped
