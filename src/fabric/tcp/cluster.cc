#include "fabric/tcp/cluster.h"

#include <fmt/format.h>

#include <algorithm>

namespace pando::fabric::tcp {

Result<std::shared_ptr<Cluster>> Cluster::open(const TcpOptions& options, wire::Purpose purpose,
                                               const Caps& caps) {
  if (options.nodes.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no memory node is given");
  }
  std::shared_ptr<Cluster> cluster(new Cluster(options, purpose, caps));
  for (const wire::Place& place : options.nodes) {
    cluster->nodes_.push_back(std::make_unique<Node>());
    cluster->nodes_.back()->place = place;
  }
  for (std::size_t i = 0; i < options.nodes.size(); ++i) {
    if (Status in = cluster->come_in(static_cast<NodeId>(i)); !in) return fail(in.error());
  }
  return cluster;
}

// The first node gives the client its id; the others get to know it.
Status Cluster::come_in(NodeId id) {
  Node& node = *nodes_[id];
  Result<wire::ControlLink> link = wire::ControlLink::open(
      node.place, options_.key, options_.cluster, proof(id, purpose_, true), options_.timeout);
  if (!link && purpose_ == wire::Purpose::kRdma && link.error().code() == ErrorCode::kCorrupt) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("memory node at {} is of a version that knows no RDMA: bring it up to "
                            "date",
                            node.place.to_string()));
  }
  if (!link) return fail(link.error());
  const wire::Welcome& welcome = link->welcome();
  client_ = welcome.client;
  node.life = welcome.life;
  for (std::size_t i = 0; i < id; ++i) {
    if (nodes_[i]->life == node.life) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("memory nodes {} and {} are one and the same, {}", i, id,
                              node.place.to_string()));
    }
  }
  sizes_.push_back(welcome.memory_bytes);
  caps_.onchip_bytes =
      id == 0 ? welcome.onchip_bytes : std::min(caps_.onchip_bytes, welcome.onchip_bytes);
  node.control.emplace(std::move(*link));
  return {};
}

Cluster::~Cluster() {
  // Best effort: whoever does not hear it takes this client for dead some time.
  for (const auto& node : nodes_) {
    if (node->control) (void)node->control->leave(options_.timeout);
  }
}

wire::Proof Cluster::proof(NodeId id, wire::Purpose purpose, bool joins) const {
  return {.client = client_,
          .generation = 1,
          .purpose = purpose,
          .joins = static_cast<std::uint8_t>(joins ? 1 : 0),
          .life = nodes_[id]->life};
}

wire::ClientHandshake Cluster::handshake(NodeId id, std::uint32_t generation) {
  wire::Proof wanted = proof(id, purpose_, false);
  wanted.generation = generation;
  return {options_.key, options_.cluster, wanted};
}

Status Cluster::fence(ClientId client) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (Status fenced = fence_at(static_cast<NodeId>(i), client); !fenced) return fenced;
  }
  return {};
}

Status Cluster::fence_at(NodeId id, ClientId client) {
  Node& node = *nodes_[id];
  const std::scoped_lock lock(node.mutex);
  Status done;
  if (node.control) done = node.control->fence(client, options_.timeout);
  if (!node.control || (!done && done.error().code() == ErrorCode::kUnavailable)) {
    // The connection broke, as connections do. To fence twice does no harm.
    node.control.reset();
    Result<wire::ControlLink> link =
        wire::ControlLink::open(node.place, options_.key, options_.cluster,
                                proof(id, wire::Purpose::kControl, false), options_.timeout);
    if (link) {
      node.control.emplace(std::move(*link));
      done = node.control->fence(client, options_.timeout);
    } else {
      done = fail(link.error());
    }
  }
  // Memory that is gone cannot be harmed.
  if (!done && done.error().code() == ErrorCode::kDataLost) return {};
  return done;
}

}  // namespace pando::fabric::tcp
