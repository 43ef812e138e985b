// Registry: which memory nodes a cluster has, as etcd knows it (docs/formats/etcd.md).
//
//  - A node's id belongs to its memory (to the life of it), for good: a node that comes back with
//    its memory has its id again, one that comes back without is another one. No id is given twice.
//  - Where a node is stands under a lease: it goes when the node stops, or has been silent for
//    kLeaseTime. Its id stays taken.
//  - What etcd says is where to look, and no more: the nodes themselves tell who they are, and are
//    believed only where the life is the one that was registered.
//  - With the cluster's key, what is not signed with it counts for nothing (record.h): clients do
//    not look there, and nodes do not go by it.
//
// Thread-safe; every call blocks, for a bounded time.
#pragma once

#include <cassert>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "fabric/etcd/client.h"
#include "fabric/etcd/record.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::etcd {

inline constexpr std::chrono::seconds kLeaseTime{10};

struct RegistryOptions {
  std::vector<std::string> endpoints;
  std::string cluster;
  std::string key = {};  // the cluster's; empty where it has none

  // kInvalidArgument: the cluster's name is missing, or is more than a word.
  Status check() const;
};

class Registry {
 public:
  // REQUIRES: the options are checked.
  explicit Registry(const RegistryOptions& options)
      : cluster_(options.cluster), key_(options.key), client_(options.endpoints) {
    assert(options.check());
  }

  // By id. An error names etcd and, where the reader can do something, what. With a key, records
  // that cannot be believed are left out; that is an error, kDenied, where no other is left, and
  // `left_out` says why of the first.
  Result<std::vector<MemoryNodeRecord>> memory_nodes(std::optional<Error>* left_out = nullptr);
  // Registers a node, under the lease, with the id that its memory has; where it has none, with the
  // next one. `remembered`: the id that the memory knows of, should etcd have lost its own.
  // kIncompatible: that id is another's. kOutOfMemory: all ids are taken.
  Result<NodeId> enter(const MemoryNodeRecord& node, std::optional<NodeId> remembered, Lease lease);
  Client& client() { return client_; }

 private:
  std::string key(std::string_view part) const;
  Signing signing() const { return {.cluster = cluster_, .key = key_}; }

  const std::string cluster_;
  const std::string key_;
  Client client_;
};

// Registration: keeps a memory node registered, from a thread of its own, until it is destroyed,
// which gives the registration back. While etcd is away it tries again and again; the node's
// service does not depend on it.
class Registration {
 public:
  struct Events {
    // All are called from the thread; `entered` once for each time that it was registered anew.
    std::function<void(NodeId id)> entered;
    std::function<void(const Error& why)> failed;  // once for each row of failures
  };
  // `node.id` is not used.
  Registration(const RegistryOptions& options, MemoryNodeRecord node,
               std::optional<NodeId> remembered, Events events);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Waits for the first attempt: registered, or why not.
  Status first_attempt();

 private:
  void keep();
  bool is_stopping();
  Status attempt();
  void note(const Status& attempted);

  Registry registry_;
  const MemoryNodeRecord node_;
  std::optional<NodeId> remembered_;
  const Events events_;
  Lease lease_ = 0;  // the thread's own, until it has ended
  bool failing_ = false;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::optional<Status> first_ PANDO_GUARDED_BY(mutex_);
  bool stopping_ PANDO_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pando::fabric::etcd
