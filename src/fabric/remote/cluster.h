// Cluster: what the endpoints of one client share: who it is, and what it knows of the nodes. Used
// by the fabrics whose clients come in over a socket, tcp and rdma. Thread-safe.
//
// Nodes are given as a list, which stays as it is, or are those of a cluster in etcd: then they
// have the ids that they are registered with, a thread looks for new ones and for new addresses of
// old ones, and comes in there. With etcd gone, what is known stays.
#pragma once

#include <atomic>
#include <cassert>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fabric/remote/options.h"
#include "fabric/wire/control.h"

namespace pando::fabric::remote {

class Cluster {
 public:
  class MemoryNode {
   public:
    MemoryNode(NodeId number, std::uint64_t known_life, wire::Place at)
        : id(number), life(known_life), place_(std::move(at)) {}
    // Where it is, as far as known.
    wire::Place place() const {
      const base::MutexLock lock(place_mutex_);
      return place_;
    }
    void move_to(const wire::Place& place) {
      const base::MutexLock lock(place_mutex_);
      place_ = place;
    }

    const NodeId id;
    std::uint64_t life;  // 0 until it is known; then it stays
    std::atomic<std::uint32_t> generation{1};
    base::Mutex mutex;
    std::optional<wire::ControlLink> control PANDO_GUARDED_BY(mutex);
    // That the client stays; nothing: nobody knows.
    std::optional<bool> announced PANDO_GUARDED_BY(mutex) = false;

   private:
    mutable base::Mutex place_mutex_;
    wire::Place place_ PANDO_GUARDED_BY(place_mutex_);
  };

  // Looks at a node where the client has come in. An error: it cannot be used.
  using Inspect = std::function<Status(NodeId id, wire::ControlLink& link)>;

  // Comes in at every node, for this purpose. `caps` but for what the nodes decide: on-chip memory.
  // `inspect` may be called by another thread, too, where nodes may come later.
  static Result<std::shared_ptr<Cluster>> open(const Options& options, wire::Purpose purpose,
                                               const Caps& caps, Inspect inspect = {});
  ~Cluster();  // leaves every node

  const Options& options() const { return options_; }
  const Caps& caps() const { return caps_; }
  const wire::TlsContext* tls() const { return tls_.get(); }  // nullptr: without
  ClientId client() const { return client_; }
  // By id; 0 where there is none. Stays valid, and as it is, for the cluster's life: ask again to
  // see nodes that have come.
  std::span<const std::uint64_t> sizes() const { return view_.load()->sizes; }
  // REQUIRES: sizes()[id] is not 0.
  MemoryNode& memory_node(NodeId id) {
    const View* const view = view_.load();
    assert(id < view->nodes.size() && view->nodes[id] != nullptr);
    return *view->nodes[id];
  }

  // For a connection that carries verbs.
  wire::ClientHandshake handshake(NodeId id, std::uint32_t generation);
  // Fabric::stay().
  Status stay(bool stays);
  // Fabric::look_for_memory_nodes().
  Status look();

 private:
  // What is known of all nodes. Replaced when there is more, never changed.
  struct View {
    std::vector<std::uint64_t> sizes;
    std::vector<MemoryNode*> nodes;
  };

  Cluster(const Options& options, wire::Purpose purpose, const Caps& caps, Inspect inspect)
      : options_(options), purpose_(purpose), inspect_(std::move(inspect)), caps_(caps) {}
  Result<wire::ControlLink> connect(const wire::Place& place, const wire::Proof& wanted) const;
  Status open_list();
  Status open_registry();
  Status come_in(NodeId id, std::uint64_t life, const wire::Place& place)
      PANDO_REQUIRES(look_mutex_);
  Status meet(const etcd::MemoryNodeRecord& record) PANDO_REQUIRES(look_mutex_);
  Status check_new(const MemoryNode& node, const wire::Welcome& welcome) const
      PANDO_REQUIRES(look_mutex_);
  void publish(std::unique_ptr<MemoryNode> node, std::uint64_t bytes) PANDO_REQUIRES(look_mutex_);
  Status announce_stay(MemoryNode& node);
  Status send_stay(MemoryNode& node, bool stays) PANDO_REQUIRES(node.mutex);
  wire::Proof proof(const MemoryNode& node, wire::Purpose purpose, bool joins) const;
  void watch();

  const Options options_;
  const wire::Purpose purpose_;
  const Inspect inspect_;
  std::unique_ptr<const wire::TlsContext> tls_;
  Caps caps_;
  ClientId client_ = 0;
  std::atomic<bool> stays_{false};

  std::optional<etcd::Registry> registry_;

  base::Mutex look_mutex_;  // held by who comes in at a new node
  // In the order in which they came.
  std::vector<std::unique_ptr<MemoryNode>> nodes_ PANDO_GUARDED_BY(look_mutex_);
  // All there ever were: readers need no lock.
  std::vector<std::unique_ptr<const View>> views_ PANDO_GUARDED_BY(look_mutex_);
  std::atomic<const View*> view_{nullptr};

  base::Mutex stop_mutex_;
  base::CondVar stop_;
  bool stopping_ PANDO_GUARDED_BY(stop_mutex_) = false;
  std::thread watcher_;
};

}  // namespace pando::fabric::remote
