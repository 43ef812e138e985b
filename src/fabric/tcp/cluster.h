// Cluster: what the endpoints of one client share: who it is, and what it knows of the nodes. Used
// by the fabrics whose clients come in over a socket, tcp and rdma. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fabric/tcp/tcp.h"
#include "fabric/wire/control.h"

namespace pando::fabric::tcp {

class Cluster {
 public:
  struct Node {
    wire::Place place;
    std::uint64_t life = 0;
    std::atomic<std::uint32_t> generation{1};
    std::mutex mutex;  // of the link
    std::optional<wire::ControlLink> control;
  };

  // Comes in at every node, for this purpose. `caps` but for what the nodes decide: on-chip memory.
  static Result<std::shared_ptr<Cluster>> open(const TcpOptions& options, wire::Purpose purpose,
                                               const Caps& caps);
  ~Cluster();  // leaves every node

  const TcpOptions& options() const { return options_; }
  const Caps& caps() const { return caps_; }
  ClientId client() const { return client_; }
  std::span<const std::uint64_t> sizes() const { return sizes_; }
  Node& node(NodeId id) { return *nodes_[id]; }

  // For a connection that carries verbs.
  wire::ClientHandshake handshake(NodeId id, std::uint32_t generation);
  Status fence(ClientId client);

 private:
  Cluster(const TcpOptions& options, wire::Purpose purpose, const Caps& caps)
      : options_(options), purpose_(purpose), caps_(caps) {}
  Status come_in(NodeId id);
  Status fence_at(NodeId id, ClientId client);
  wire::Proof proof(NodeId id, wire::Purpose purpose, bool joins) const;

  const TcpOptions options_;
  const wire::Purpose purpose_;
  Caps caps_;
  ClientId client_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::uint64_t> sizes_;
};

}  // namespace pando::fabric::tcp
