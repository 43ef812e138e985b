// Door: where verbs come in at a memory node by RDMA. It registers the memory with the device and
// listens; the node's server (node/server.h) decides who is invited.
//
//  - A guest is invited by its connection to the server, where it has proved who it is, and shows
//    the token that it was given there. A token is good for one connection; others are rejected.
//  - When withdraw() returns, the guest's queue pair is gone and no verb of it takes effect any
//    more: fences and newer generations rest on this.
//  - The node's processor touches no word that guests can reach.
//
// Used by the server's thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "fabric/node/memory.h"
#include "fabric/rdma/device.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

class Door {
 public:
  using Guest = std::uint64_t;  // 0 is nobody

  // `place`: an address of a device, or a device's name as the host; port 0 has the system choose.
  // The memory outlives the door.
  static Result<std::unique_ptr<Door>> open(const node::NodeMemory& memory,
                                            const wire::Place& place);

  // Readable when there is something to serve().
  int descriptor() const { return channel_->fd; }
  wire::Place place() const;
  const char* device() const { return device_->name(); }

  struct Invitation {
    Guest guest = 0;
    wire::Door door;
  };
  Invitation invite();
  void withdraw(Guest guest) { guests_.erase(guest); }
  // Lets guests in, and sees them go.
  void serve();

 private:
  struct Invited {
    base::Digest token;
    bool came = false;
    Owned<rdma_cm_id> id;
  };

  Door() = default;
  void answer(Owned<rdma_cm_id> id, const wire::Ticket& ticket);
  bool let_in(rdma_cm_id& id);

  Owned<rdma_event_channel> channel_;
  Owned<rdma_cm_id> listener_;
  std::shared_ptr<Device> device_;
  Owned<ibv_cq> queue_;  // nothing ever completes here: guests do all the work
  Owned<ibv_mr> memory_;
  Owned<ibv_mr> onchip_;
  wire::Door offer_;  // all but the token
  Guest last_guest_ = 0;
  std::map<Guest, Invited> guests_;  // goes first
};

}  // namespace pando::fabric::rdma
