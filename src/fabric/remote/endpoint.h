// LinkedEndpoint: an endpoint with a link to each memory node, made when it is first needed. It
// cuts a batch into node batches, one or more a node, and completes it with the last of them.
//
//  - A node that does not answer for `timeout`, or whose connection breaks, ends what is under way
//    with kUnavailable (kIndeterminate for atomics); later batches connect anew. Nothing is sent
//    twice.
//  - Connections of one client to one node have a generation. When one of them breaks with verbs
//    under way, the generation moves on, all others are renewed, and the node closes those of an
//    older generation before it lets the new one in. So verbs of unknown outcome take effect before
//    anything that their client posts afterwards (verbs.h, rule 9).
//  - fence() makes every node close the client's connections and let it in no more.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fabric/remote/cluster.h"
#include "fabric/remote/link.h"

namespace pando::fabric::remote {

// What one verb, and one node batch, may be at most.
struct NodeBatchLimits {
  std::string_view fabric;        // for messages
  std::uint64_t verb_bytes = 0;   // of a READ or WRITE
  std::size_t message_bytes = 0;  // of a node batch's request or answer, in wire::request_bytes
  std::size_t verbs = 0;
};

class LinkedEndpoint : public Endpoint, protected Link::Owner {
 public:
  LinkedEndpoint(std::shared_ptr<Cluster> cluster, task::Worker& worker, const Caps& caps,
                 const NodeBatchLimits& limits)
      : Endpoint(caps, worker),
        cluster_(std::move(cluster)),
        limits_(limits),
        simulator_(worker.clock().simulator()) {}
  LinkedEndpoint(const LinkedEndpoint&) = delete;
  LinkedEndpoint& operator=(const LinkedEndpoint&) = delete;

  bool poll() override;
  bool pending() const override { return flights_ + fencings_ > 0; }
  bool add_descriptors(std::vector<pollfd>& to) const override;
  void abandon() override;
  Task<Status> fence(ClientId client) override;
  task::Worker& worker() const override { return Endpoint::worker(); }

 protected:
  // Verbs that nobody waits for any more must have happened, or be sure not to: those who derive
  // call abandon() first thing in their destructors.
  ~LinkedEndpoint() override = default;
  virtual std::unique_ptr<Link> make_link(NodeId node, Link::Owner& owner) = 0;
  // What else is wrong with the batch, if anything.
  virtual std::optional<Error> unfit(const Batch& /*batch*/) const { return std::nullopt; }
  Cluster& cluster() const { return *cluster_; }
  void close_links() { links_.clear(); }

 private:
  std::span<const std::uint64_t> memory_node_sizes() const override { return cluster_->sizes(); }
  bool post(Batch& batch) override;
  std::optional<Error> too_long(const Batch& batch) const;
  void cut(const Batch& batch, Flight& flight);
  Link& link_to(NodeId node);
  void ended(NodeBatch node_batch, const Status& status) override;
  void answered(Fencing& fencing, const Status& status) override;
  void left_in_doubt(NodeId node) override { report_in_doubt(node); }
  Flight& take_flight();
  void ask_to_be_polled();

  std::shared_ptr<Cluster> cluster_;
  const NodeBatchLimits limits_;
  task::Simulator* const simulator_;              // nullptr: the worker polls by itself
  task::TimePoint due_ = task::TimePoint::max();  // asked for last
  std::vector<std::unique_ptr<Link>> links_;      // by node
  std::size_t flights_ = 0;
  std::size_t fencings_ = 0;
  bool completed_ = false;
  std::vector<std::unique_ptr<Flight>> all_;
  std::vector<Flight*> free_;
  std::vector<std::pair<NodeId, NodeBatch>> node_batches_;  // of the batch that is being posted
};

}  // namespace pando::fabric::remote
