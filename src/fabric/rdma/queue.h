// Queue: a client's queue pair, and how work requests get onto it: those of a node batch at once,
// with one doorbell. And how queue pairs of either side are made and connected.
//
// That is done here, and not left to librdmacm, which knows neither the kinds of queue pairs that
// drivers have of their own (mlx5.h) nor a choice of the MTU.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "fabric/rdma/device.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

// A work request of one piece of local memory. What it needs to say of a masked compare-and-swap,
// which rdma-core has no word for, stands in the verb; `work` then has addresses, key and flags.
struct Request {
  ibv_send_wr work{};
  ibv_sge piece{};
  const Verb* masked = nullptr;
};

// The order of a batch's requests at the memory node, as rule 4 of verbs.h promises it. The
// InfiniBand standard ("work request ordering") keeps two requests of one queue pair in order but
// where the first is a READ or an atomic and the second is none of the READs: those may overtake
// it, unless they are fenced, which has them wait for all READs and atomics before them. So a WRITE
// or an atomic behind an atomic is fenced. Behind a READ it is not: rule 4 lets it overtake. A READ
// behind an atomic, which is how locks are taken, needs no fence, and keeps its one round trip.
class BatchOrder {
 public:
  // What the batch's next request needs among its flags: IBV_SEND_FENCE, or none.
  unsigned flags_of(VerbKind kind) {
    if (!changes_memory(kind)) return 0;
    return std::exchange(behind_atomic_, is_atomic(kind)) ? static_cast<unsigned>(IBV_SEND_FENCE)
                                                          : 0u;
  }

 private:
  bool behind_atomic_ = false;
};

class Queue {
 public:
  explicit Queue(Owned<ibv_qp> pair) : pair_(std::move(pair)) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ibv_qp& pair() const { return *pair_; }
  // In this order. An errno, or 0. REQUIRES: there is one at least, and room for all.
  virtual int post(std::span<Request> requests) = 0;

 private:
  Owned<ibv_qp> pair_;
};

// What a queue pair is made with: reliable, and all that it does completes in one queue.
ibv_qp_init_attr_ex describe_pair(const Device& device, ibv_cq& completions,
                                  const ibv_qp_cap& room);
Result<Owned<ibv_qp>> make_pair(const Device& device, ibv_cq& completions, const ibv_qp_cap& room);
// `masked_cas`: takes masked compare-and-swap, too. REQUIRES: then the device has it.
Result<std::unique_ptr<Queue>> make_queue(const Device& device, ibv_cq& completions,
                                          const ibv_qp_cap& room, bool masked_cas);

// The MTUs that RDMA has, in bytes of payload.
inline constexpr std::array<std::uint32_t, 5> kMtus = {256, 512, 1024, 2048, 4096};
std::optional<ibv_mtu> find_mtu(std::uint32_t bytes);
// Takes a fresh queue pair to where it sends and receives, with what the id has learnt of the other
// side. `mtu`: at most; both sides must say the same.
Status make_ready(ibv_qp& pair, rdma_cm_id& id, const Device& device, ibv_mtu mtu);

}  // namespace pando::fabric::rdma
