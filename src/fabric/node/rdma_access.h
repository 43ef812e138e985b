// RdmaAccess: what a memory node's server (server.h) needs of RDMA, where verbs reach the memory
// past its thread. The server decides who is granted access; who implements this (rdma/acceptor.h)
// lets in whoever shows the token of a grant, and nobody else.
//
//  - When revoke() returns, no verb of whoever came in by that grant takes effect any more: fences
//    and newer generations rest on this.
//
// Used by the server's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fabric/node/memory.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/place.h"
#include <pando/result.h>

namespace pando::fabric::node {

class RdmaAccess {
 public:
  using GrantId = std::uint64_t;  // 0 is none
  // A token is good for one connection.
  struct Grant {
    GrantId id = 0;
    wire::RdmaOffer offer;
  };

  virtual ~RdmaAccess() = default;

  virtual wire::Place place() const = 0;
  virtual bool onchip_in_card() const = 0;
  virtual Grant grant() = 0;
  virtual void revoke(GrantId grant) = 0;
  // Readable when there is something to serve().
  virtual int descriptor() const = 0;
  // Lets in those who come with a token, and sees them go.
  virtual void serve() = 0;
  // Nobody is in any more, and all bytes are the node's again. An error where those of the card
  // could not be had: with the process they are lost.
  virtual Status close() = 0;
};

// The memory outlives it.
using OpenRdmaAccess = std::function<Result<std::unique_ptr<RdmaAccess>>(const NodeMemory& memory)>;

}  // namespace pando::fabric::node
