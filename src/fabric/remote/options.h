// What a client needs to know to come in over sockets: which memory nodes, with which key, for how
// long to wait. Shared by tcp and rdma.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "fabric/etcd/registry.h"
#include "fabric/verbs.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::remote {

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

struct Options {
  // Where they listen for sockets, in the order of their ids; empty where a registry is given.
  std::vector<wire::Place> nodes;
  std::optional<etcd::RegistryOptions> registry;
  std::string key;
  std::string cluster;
  bool tls = false;  // by TLS, but for Unix sockets; with a key
  std::chrono::milliseconds timeout{2000};
  bool native_masked_cas = true;
  wire::Network* network = &wire::Network::system();  // of this compute node's machine
  BatchWatcher* watcher = nullptr;
};

}  // namespace pando::fabric::remote
