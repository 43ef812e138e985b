// Acceptor: where verbs come in at a memory node by RDMA (node/rdma_access.h). It registers the
// memory with the device, and listens.
//
//  - The node's processor touches no word that clients can reach by RDMA.
//  - The on-chip memory may be the card's own (node/onchip.h; UNTESTED ON HARDWARE). close() moves
//    it back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "fabric/node/memory.h"
#include "fabric/node/onchip.h"
#include "fabric/node/rdma_access.h"
#include "fabric/rdma/chip_memory.h"
#include "fabric/rdma/device.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

class Acceptor final : public node::RdmaAccess {
 public:
  // `place`: an address of a device, or a device's name as the host; port 0 has the system choose.
  // The memory outlives the acceptor. An error where the on-chip memory shall be in the card, and
  // cannot.
  static Result<std::unique_ptr<Acceptor>> open(const node::NodeMemory& memory,
                                                const wire::Place& place, node::OnChipPlace onchip);
  ~Acceptor() override;
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  wire::Place place() const override;
  bool onchip_in_card() const override { return card_ != nullptr; }
  Grant grant() override;
  void revoke(GrantId grant) override { grants_.erase(grant); }
  int descriptor() const override { return channel_->fd; }
  void serve() override;
  Status close() override;

 private:
  // Destroyed in the opposite order.
  struct Connection {
    Owned<rdma_cm_id> id;
    Owned<ibv_qp> pair;
  };
  struct Granted {
    base::Digest token;
    bool came = false;
    std::optional<Connection> connection;
  };

  explicit Acceptor(const node::NodeMemory& memory) : node_(memory) {}
  Status offer_onchip(node::OnChipPlace place);
  void answer(Owned<rdma_cm_id> id, const wire::Ticket& ticket);
  Owned<ibv_qp> let_in(rdma_cm_id& id, std::uint32_t mtu);

  const node::NodeMemory& node_;
  Owned<rdma_event_channel> channel_;
  Owned<rdma_cm_id> listener_;
  std::shared_ptr<Device> device_;
  Owned<ibv_cq> queue_;  // nothing ever completes here: clients do all the work
  Owned<ibv_mr> memory_;
  Owned<ibv_mr> onchip_;              // of the node's memory, or
  std::unique_ptr<ChipMemory> card_;  // the card's own
  wire::RdmaOffer offer_;             // all but the token
  GrantId last_grant_ = 0;
  std::map<GrantId, Granted> grants_;  // goes first
};

// For ServerOptions::rdma.
node::OpenRdmaAccess acceptor_at(wire::Place place,
                                 node::OnChipPlace onchip = node::OnChipPlace::kAutomatic);

}  // namespace pando::fabric::rdma
