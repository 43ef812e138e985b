// Session: one worker's access to the pool. Operation: one index operation's context.
//
// Every coroutine of an index takes an Operation&. It pins the epoch, so that no block that the
// operation can reach is reused while it lasts; carries the deadline; and adds up what it costs.
//
// Sessions and operations belong to one worker's thread. Many operations of one session may be
// under way at once; they pin in the order they start and may end in any order. The session shows
// the epoch of its oldest alone: epochs only grow, so that is the least.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "fabric/verbs.h"
#include "pool/memory/block.h"
#include "pool/memory/epochs.h"
#include "task/worker.h"
#include <pando/result.h>
#include <pando/stats.h>
#include <pando/task.h>

namespace pando::pool {

class ComputeNode;
class Operation;

class Session : private fabric::Endpoint::Listener {
 public:
  static constexpr std::uint64_t kUnpinned = ~std::uint64_t{0};

  // Use ComputeNode::make_session.
  Session(ComputeNode& node, task::Worker& worker, std::unique_ptr<fabric::Endpoint> endpoint);
  virtual ~Session();  // REQUIRES: no operation is under way
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ComputeNode& compute_node() const { return node_; }
  task::Worker& worker() const { return worker_; }
  fabric::Endpoint& endpoint() const { return *endpoint_; }
  // The moment of its oldest operation (Epochs); kUnpinned where none is under way. Any thread.
  std::uint64_t pinned() const { return pinned_.load(std::memory_order_seq_cst); }
  // The same, and a barrier: what the caller wrote before is seen by every operation that this
  // session starts from kUnpinned after it. Any thread. See Limbo.
  std::uint64_t pinned_barrier() const { return pinned_.fetch_add(0, std::memory_order_acq_rel); }

  // The endpoint's counters and buffers as they were when an operation last ended. Any thread.
  Counters counters() const;
  std::uint64_t buffer_bytes() const { return published_buffers_.load(std::memory_order_relaxed); }
  // What it does is the compute node's own upkeep, and is reported apart.
  void mark_housekeeping() { housekeeping_.store(true, std::memory_order_relaxed); }
  bool housekeeping() const { return housekeeping_.load(std::memory_order_relaxed); }

 private:
  friend class Operation;
  void publish();
  void left_in_doubt(fabric::NodeId node) override;

  ComputeNode& node_;
  task::Worker& worker_;
  std::unique_ptr<fabric::Endpoint> endpoint_;
  mutable std::atomic<std::uint64_t> pinned_{kUnpinned};
  Operation* oldest_ = nullptr;
  Operation* newest_ = nullptr;
  std::array<std::atomic<std::uint64_t>, sizeof(Counters) / sizeof(std::uint64_t)> published_{};
  std::atomic<std::uint64_t> published_buffers_{0};
  std::atomic<bool> housekeeping_{false};
};

class Operation {
 public:
  explicit Operation(Session& session, Counters* cost = nullptr);
  // For work that must not be cut short by the operation it serves (finishing a split).
  Operation(Session& session, task::TimePoint deadline, Counters* cost);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Session& session() const { return session_; }
  ComputeNode& compute_node() const { return session_.compute_node(); }
  task::Worker& worker() const { return session_.worker(); }
  fabric::Endpoint& endpoint() const { return session_.endpoint(); }
  Counters* cost() const { return cost_; }

  // co_await op.submit(batch): one round trip. Make batches with Batch(op.cost()).
  fabric::Endpoint::Submission submit(fabric::Batch& batch) const {
    return endpoint().submit(batch);
  }
  fabric::Buffer buffer(std::size_t bytes) const { return endpoint().buffer(bytes); }
  void count_retry() const { endpoint().count_retry(cost_); }

  // Counted from when it is first asked for, which is at the first delay: an operation that meets
  // none never looks at the clock.
  task::TimePoint deadline() const;
  bool expired() const { return worker().now() >= deadline(); }
  std::uint64_t epoch() const { return Epochs::epoch_of(pinned_); }

 private:
  void pin();

  Session& session_;
  Counters* cost_;
  mutable task::TimePoint deadline_{};  // none yet
  Epochs::Moment pinned_ = 0;
  Operation* older_ = nullptr;
  Operation* newer_ = nullptr;
};

// A word of far memory: one round trip.
Task<Result<std::uint64_t>> read_word(Operation& op, fabric::Address from);

}  // namespace pando::pool
