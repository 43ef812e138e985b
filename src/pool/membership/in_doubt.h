// InDoubt: memory nodes where something of this compute node may yet happen.
//
// A WRITE or an atomic whose outcome is unknown, or whose coroutine was destroyed while it was
// under way, may still take effect, at the latest when a later verb of this compute node has
// completed at that node (rule 9 of fabric/verbs.h). The operation that posted it is over by then,
// and its pin gone. So its epoch stays pinned here until then: blocks that it wrote to, or tried to
// lock, are not reused meanwhile. Hence who fails to write a block retires it, and need not know
// more.
//
// But for locks of nodes that no pin covers: those that the operation came to by an old pointer,
// after they were freed (epochs.h), and those that the housekeeper takes back for an operation that
// is over (abandoned_locks.h). Such a lock may change late, in a node that is free or another one
// by then, and it does no harm: block.h, invariant 2.
//
// The housekeeper resolves it: one READ at each such node. A node that cannot be reached holds the
// epoch back, and with it all memory that waits for it, until it can be or has lost its memory.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class InDoubt {
 public:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  // By an operation that pinned `epoch` or later. REQUIRES: its pin is still there.
  void add(fabric::NodeId node, std::uint64_t epoch);
  // The least epoch that is held; kNone where nothing is in doubt.
  std::uint64_t oldest() const { return oldest_.load(std::memory_order_acquire); }
  bool any() const { return oldest() != kNone; }
  // What has come so far. Where a node cannot be reached, its own stays. For one coroutine at a
  // time.
  Task<Status> resolve(Operation& op);

 private:
  using Held = std::map<fabric::NodeId, std::uint64_t>;  // the least epoch at each node

  static Task<Status> post_to(Operation& op, fabric::NodeId node);
  void update() PANDO_REQUIRES(mutex_);

  std::atomic<std::uint64_t> oldest_{kNone};
  base::Mutex mutex_;
  Held held_
      PANDO_GUARDED_BY(mutex_);  // what comes while resolve() is at work is resolved by the next
  Held resolving_ PANDO_GUARDED_BY(mutex_);  // what it is at
};

}  // namespace pando::pool
