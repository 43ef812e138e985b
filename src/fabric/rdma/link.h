// Link: a link whose verbs go by a queue pair beside its socket. The socket is how the client comes
// in, is offered RDMA, and hears that it is shut out; when either of the two ends, so does the
// other.
//
//  - The verbs of a node batch are one chain of work requests, posted at once, of which the last is
//    signalled. Work requests are numbered; a completion ends all node batches up to its number.
//  - What an atomic returns lands in a slot of its work request's own, and is copied from there.
//  - When close() returns, the card touches nothing of the verbs any more.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/rdma/arena.h"
#include "fabric/rdma/device.h"
#include "fabric/rdma/queue.h"
#include "fabric/remote/link.h"

namespace pando::fabric::rdma {

// Work requests under way at most; and in one node batch.
inline constexpr std::size_t kSlots = 512;
inline constexpr std::size_t kMaxNodeBatch = 256;
// WRITEs up to here travel within the work request.
inline constexpr std::uint32_t kInlineBytes = 256;

// How a client's links are made.
struct LinkOptions {
  DeviceChoice device;
  std::uint32_t mtu = kMtus.back();  // at most
  // What their users rely on: no line is ever torn; masked compare-and-swap is the cards' own.
  bool line_atomic = false;
  bool masked_cas = false;
};

class Link final : public remote::Link {
 public:
  // The device, the options and the arena outlive the link.
  Link(remote::Cluster& cluster, NodeId id, Owner& owner, const Device& device,
       const LinkOptions& options, Arena& arena);
  ~Link() override { close_queues(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  bool add_descriptors(std::vector<pollfd>& to) const override;

 private:
  // What a node batch that is under way ends with.
  struct Posted {
    std::uint64_t first;  // number of its first work request
    std::uint64_t end;    // number behind its last
  };

  void let_in(const wire::Welcome& welcome) override;
  void send_waiting() override;
  void work(task::TimePoint now) override;
  bool take(const wire::Frame& frame, std::span<const std::byte> body) override;
  void close() override;

  void connect(const wire::RdmaOffer& offer);
  void hear();
  Status take_event(const Event& event);
  Status make_queues();
  Status enter();
  Status establish();
  void reap();
  void finish(const remote::NodeBatch& node_batch, std::uint64_t number);
  void describe(const Verb& verb, Request& request);
  void close_queues();
  Error unavailable(std::string_view what) const;

  const Device& device_;
  const LinkOptions& options_;
  Arena& arena_;
  std::uint64_t* slots_;  // registered; by a work request's number

  // Destroyed in the opposite order.
  Owned<rdma_event_channel> events_;
  Owned<ibv_comp_channel> completions_;
  Owned<ibv_cq> completed_queue_;
  Owned<rdma_cm_id> id_;
  std::unique_ptr<Queue> queue_;
  wire::RdmaOffer offer_;
  std::uint64_t posted_ = 0;      // work requests so far
  std::uint64_t completed_ = 0;   // of them
  std::deque<Posted> under_way_;  // as sent()
  // Of the batch that was last posted: one that is long comes in several node batches.
  const remote::Flight* ordered_ = nullptr;
  BatchOrder order_;
  std::optional<Error> broken_;  // what came while it could not be told
  mutable bool armed_ = false;   // the next completion will be told by completions_
  task::TimePoint look_from_{};  // at the socket and the connection, while up
  std::array<Request, kMaxNodeBatch> requests_;
};

}  // namespace pando::fabric::rdma
