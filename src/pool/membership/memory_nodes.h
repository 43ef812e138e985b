// MemoryNodes: which memory nodes a pool has, and how more come to it while it is used.
//
// A pool begins with the nodes that were there when it was formatted, 0 … n - 1. Where the fabric
// may grow, nodes that come later are added to a list on node 0, which only ever gets longer. To
// add one: format it (its state word is the lock, as node 0's is the pool's: format.h), then swap
// the list's first free word for its id. Any compute node may; one of them does.
//
// A compute node that follows a pointer must reach where it leads, and one that fences another must
// shut it out wherever that one may write. So a node is allocated from only once every living
// compute node knows it: each says in its slot how many of the list it knows, and when the least of
// these counts, read by beat(), covers a node, that node is used. A compute node that joins reads
// the list after it has taken its slot, and does not open where it misses one of them: so none
// that came after the count was taken needs to be waited for.
//
// Thread-safe, but open() and look(), which are for one coroutine at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class MemoryNodes {
 public:
  explicit MemoryNodes(ComputeNode& node) : node_(node) {}

  // Learns which nodes there are beside the first `initial`. kUnavailable where one of them is not
  // there, kIncompatible where the fabric cannot grow and has others than these. REQUIRES: joined.
  Task<Status> open(Operation& op, std::size_t initial);
  // Housekeeping: learns of nodes that others have added, and adds those that nobody has. What
  // cannot be done now is left to the next look.
  Task<void> look(Operation& op);

  // Whether the fabric has every node of the list. A fence that was made before is complete then,
  // even where this compute node has not joined: whom it shut out had to read the list to use more.
  Task<Result<bool>> reaches_all(Operation& op);

  // How many nodes of the list this compute node knows; 0 where there is none.
  std::uint64_t known() const { return known_.load(std::memory_order_acquire); }
  // Every living compute node knows that many. Only the most that was ever said counts.
  void all_know(std::uint64_t count);

  // All that are known.
  std::vector<fabric::NodeId> all() const { return first(known()); }
  // Those that may be allocated from.
  std::vector<fabric::NodeId> in_use() const;

 private:
  using List = std::vector<fabric::NodeId>;
  struct Formatter {
    std::uint64_t client = 0;  // who formats the node, as it seems
    task::TimePoint since;
  };

  Task<Result<List>> read_list(Operation& op);
  // True: the node is part of this pool. False: it is not, or not yet.
  Task<Result<bool>> checked(Operation& op, fabric::NodeId id);
  Task<Status> look_once(Operation& op);
  Task<Result<bool>> format(Operation& op, fabric::NodeId id);
  Task<Status> add(Operation& op, fabric::NodeId id, List& list);
  void learn(fabric::NodeId id);
  List first(std::uint64_t added) const;

  ComputeNode& node_;
  std::size_t initial_ = 0;
  std::atomic<std::uint64_t> known_{0};
  std::atomic<std::uint64_t> used_{0};
  task::TimePoint next_look_{};
  std::vector<Formatter> formatters_;  // by id

  mutable base::Mutex mutex_;
  List added_ PANDO_GUARDED_BY(mutex_);  // of the list, those that are known
};

}  // namespace pando::pool
