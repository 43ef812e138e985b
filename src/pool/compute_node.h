// ComputeNode: one compute node's side of the pool; owns everything it keeps.
//
// Order of life: open() formats or checks the memory nodes and joins; sessions are made for
// workers; housekeeping runs on one of them from then on (a thread of its own in a process, a
// coroutine in a simulation); close() gives free memory back and leaves. Destroyed without close(),
// or where that fails, it is what a crash leaves behind: its slot stays until a peer buries it.
//
// Others take over the locks of whoever has left, without a fence. So who leaves proves first that
// nothing of it can happen any more at any memory node (docs/fabrics.md, "Leaving"):
//  1. Its sessions are gone but one, and no operation is under way.
//  2. Every lock that was abandoned has been taken back.
//  3. At every memory node that it has ever reached, a verb that it posted after all this has
//     completed: what was of unknown outcome there has happened, or never will (rule 9 of verbs.h).
//  4. Then, by that one session, its slot is given up with a compare-and-swap. If that is cut off,
//     it lands before a fence or never: those who find the slot alive fence before they declare it
//     dead.
// What cannot be proved within a lease makes it no leave: it is a death, and found out as one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "pool/catalogue/catalogue.h"
#include "pool/event.h"
#include "pool/membership/abandoned_locks.h"
#include "pool/membership/in_doubt.h"
#include "pool/membership/membership.h"
#include "pool/membership/memory_nodes.h"
#include "pool/memory/allocator.h"
#include "pool/memory/budget.h"
#include "pool/memory/epochs.h"
#include "pool/operation.h"
#include <pando/options.h>
#include <pando/result.h>
#include <pando/stats.h>
#include <pando/task.h>

namespace pando::pool {

class Recycler;

class ComputeNode {
 public:
  // Between beats, if the lease is not so short that it asks for more.
  static constexpr task::Duration kBeat = std::chrono::milliseconds(10);
  // Between beats that are hurried but must wait for peers to announce.
  static constexpr task::Duration kHurriedBeat = std::chrono::milliseconds(1);

  ComputeNode(std::unique_ptr<fabric::Fabric> fabric, const PoolOptions& options);
  ~ComputeNode();  // REQUIRES: all sessions are gone
  ComputeNode(const ComputeNode&) = delete;
  ComputeNode& operator=(const ComputeNode&) = delete;

  // Formats fresh memory nodes, or checks that these belong together and have a format we know
  // (kIncompatible, naming node and format); then joins. kInvalidArgument: a node is too small.
  // kUnavailable: a node of the pool is not there.
  Task<Status> open(Session& session);
  // REQUIRES: housekeeping has ended, no operation is under way, and all other sessions are gone.
  // An error: it has not left, and will be taken for dead.
  Task<Status> close(Session& session);
  // The same in two steps: until the second, its peers find it dead should it go. The first gives
  // back what is free and proves that nothing is under way; what it answers is for the second.
  Task<Result<bool>> rest(Session& session);
  Task<Status> give_up_slot(Session& session, bool all_given);

  Result<std::unique_ptr<Session>> make_session(task::Worker& worker);

  // The background loop: beats and collects every kBeat, sooner when kicked, until stop().
  Task<void> housekeeping(Session& session);
  void stop();
  // Memory is waiting for epochs: beat at once. Any thread; cheap when it has been kicked already.
  void kick();
  // The ledger has something to list: do upkeep now. Any thread.
  void wake() { wakeup_.set(); }
  // Why housekeeping gave up (fenced), or has not got through for a lease (memory nodes gone);
  // operations should answer this.
  Status health() const;

  fabric::Fabric& fabric() { return *fabric_; }
  const PoolOptions& options() const { return options_; }
  Budget& budget() { return budget_; }
  Epochs& epochs() { return epochs_; }
  Limbo& limbo() { return limbo_; }
  Membership& membership() { return membership_; }
  MemoryNodes& memory_nodes() { return memory_nodes_; }
  Allocator& allocator() { return allocator_; }
  Catalogue& catalogue() { return catalogue_; }
  AbandonedLocks& abandoned_locks() { return abandoned_locks_; }
  Recycler& recycler() { return *recycler_; }
  InDoubt& in_doubt() { return in_doubt_; }
  // What this compute node may announce (epochs.h): no operation of it has pinned an earlier epoch,
  // nor will, and nothing that one did may yet happen.
  std::uint64_t announceable() const {
    // In this order: an operation adds what is in doubt before it ends.
    const std::uint64_t by_operations = epochs_.announceable();
    return std::min(by_operations, in_doubt_.oldest());
  }
  // Of the pool, random. REQUIRES: open() succeeded.
  std::uint64_t pool_id() const {
    assert(pool_id_ != 0);
    return pool_id_;
  }

  Task<Result<PoolStats>> stats(Operation& op);

 private:
  friend class Session;
  void add_session(Session* session);
  void remove_session(Session* session);

  Task<Status> upkeep(Session& session);
  Task<Result<bool>> quiesce(Session& session);
  struct Heart {
    bool stopped = false;
    bool beating = false;
  };
  Task<void> keep_beating(Session& session, std::shared_ptr<Heart> heart);
  Task<Status> prove_quiescent(Operation& op);
  Task<void> tick(Session& session);
  task::Duration beat() const {
    return std::min<task::Duration>(kBeat, task::Duration(options_.lease) / 8);
  }
  task::Duration hurried_beat() const {
    return std::min<task::Duration>(kHurriedBeat, task::Duration(options_.lease) / 32);
  }
  void note(const Status& done, task::TimePoint now);

  std::unique_ptr<fabric::Fabric> fabric_;
  const PoolOptions options_;
  Budget budget_;
  Epochs epochs_;
  Limbo limbo_;
  Membership membership_;
  MemoryNodes memory_nodes_;
  Allocator allocator_;
  Catalogue catalogue_;
  AbandonedLocks abandoned_locks_;
  InDoubt in_doubt_;
  const std::unique_ptr<Recycler> recycler_;
  std::uint64_t pool_id_ = 0;

  std::atomic<bool> stopping_{false};
  bool at_upkeep_ = false;  // the housekeeping coroutines' own
  std::atomic<bool> kicked_{false};
  Event wakeup_;

  mutable base::Mutex mutex_;
  Status health_ PANDO_GUARDED_BY(mutex_);
  task::TimePoint last_success_ PANDO_GUARDED_BY(mutex_);
  std::vector<Session*> sessions_ PANDO_GUARDED_BY(mutex_);
  Counters closed_operations_ PANDO_GUARDED_BY(mutex_);  // of sessions that are gone
  Counters closed_housekeeping_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace pando::pool
