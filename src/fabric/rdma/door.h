// Door: where verbs come in at a memory node by RDMA. It registers the memory with the device and
// listens; the node's server (node/server.h) decides who is invited.
//
//  - A guest is invited by its connection to the server, where it has proved who it is, and shows
//    the token that it was given there. A token is good for one connection; others are rejected.
//  - When withdraw() returns, the guest's queue pair is gone and no verb of it takes effect any
//    more: fences and newer generations rest on this.
//  - The node's processor touches no word that guests can reach.
//  - The on-chip memory may be the card's own (node/onchip.h; UNTESTED ON HARDWARE). close() moves
//    it back.
//
// Used by the server's thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "fabric/node/memory.h"
#include "fabric/node/onchip.h"
#include "fabric/rdma/chip_memory.h"
#include "fabric/rdma/device.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

class Door {
 public:
  using Guest = std::uint64_t;  // 0 is nobody

  // `place`: an address of a device, or a device's name as the host; port 0 has the system choose.
  // The memory outlives the door. An error where the on-chip memory shall be in the card, and
  // cannot.
  static Result<std::unique_ptr<Door>> open(
      const node::NodeMemory& memory, const wire::Place& place,
      node::OnChipPlace onchip = node::OnChipPlace::kAutomatic);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Readable when there is something to serve().
  int descriptor() const { return channel_->fd; }
  wire::Place place() const;
  const char* device() const { return device_->name(); }
  bool onchip_in_card() const { return card_ != nullptr; }
  // Nobody is in any more, and all bytes are the node's again. An error where those of the card
  // could not be had: with the process they are lost.
  Status close();

  struct Invitation {
    Guest guest = 0;
    wire::Door door;
  };
  Invitation invite();
  void withdraw(Guest guest) { guests_.erase(guest); }
  // Lets guests in, and sees them go.
  void serve();

 private:
  // Destroyed in the opposite order.
  struct Connection {
    Owned<rdma_cm_id> id;
    Owned<ibv_qp> pair;
  };
  struct Invited {
    base::Digest token;
    bool came = false;
    std::optional<Connection> connection;
  };

  explicit Door(const node::NodeMemory& memory) : node_(memory) {}
  Status offer_onchip(node::OnChipPlace place);
  void answer(Owned<rdma_cm_id> id, const wire::Ticket& ticket);
  Owned<ibv_qp> let_in(rdma_cm_id& id, std::uint32_t mtu);

  const node::NodeMemory& node_;
  Owned<rdma_event_channel> channel_;
  Owned<rdma_cm_id> listener_;
  std::shared_ptr<Device> device_;
  Owned<ibv_cq> queue_;  // nothing ever completes here: guests do all the work
  Owned<ibv_mr> memory_;
  Owned<ibv_mr> onchip_;              // of the node's memory, or
  std::unique_ptr<ChipMemory> card_;  // the card's own
  wire::Door offer_;                  // all but the token
  Guest last_guest_ = 0;
  std::map<Guest, Invited> guests_;  // goes first
};

}  // namespace pando::fabric::rdma
