// The tcp fabric: memory nodes reached over sockets (docs/fabrics.md).
//
//  - Each endpoint has a connection to each node, made when it is first needed. Verbs are encoded
//    as they are posted and sent together when the worker polls: one send, however many batches.
//  - A node that does not answer for `timeout`, or whose connection breaks, ends what is under way
//    with kUnavailable (kIndeterminate for atomics); later batches connect anew. Nothing is sent
//    twice.
//  - Connections of one client to one node have a generation. When one of them breaks with verbs
//    under way, the generation moves on, all others are renewed, and the node closes those of an
//    older generation before it lets the new one in. So verbs of unknown outcome take effect before
//    anything that their client posts afterwards (verbs.h, rule 9).
//  - fence() makes every node close the client's connections and let it in no more.
//  - Nodes are given as a list, which stays as it is, or are those of a cluster in etcd: then they
//    have the ids that they are registered with, a thread looks for new ones and for new addresses
//    of old ones, and comes in there. With etcd gone, what is known stays.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/etcd/registry.h"
#include "fabric/verbs.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::tcp {

// Sees every batch of a client's endpoints, where simulations watch it.
class BatchWatcher {
 public:
  virtual void posted(ClientId client) = 0;
  // Its verbs have their outcomes, and who waits for it is yet to hear. nullptr: nobody does.
  virtual void ended(ClientId client, const task::Worker& worker, task::TimePoint posted_at,
                     const Batch* batch) = 0;

 protected:
  ~BatchWatcher() = default;
};

struct TcpOptions {
  std::vector<wire::Place> nodes;  // in the order of their ids; empty where a registry is given
  std::optional<etcd::RegistryOptions> registry;
  std::string key;
  std::string cluster;
  bool tls = false;  // by TLS, but for Unix sockets; with a key
  std::chrono::milliseconds timeout{2000};
  bool native_masked_cas = true;
  wire::Network* network = &wire::Network::system();  // of this compute node's machine
  BatchWatcher* watcher = nullptr;
};

// Comes in at every node. An error where one of the list is not there. With a registry, only node
// 0 must be, and who uses the fabric sees which others are.
Result<std::unique_ptr<Fabric>> open_tcp(const TcpOptions& options);

}  // namespace pando::fabric::tcp
