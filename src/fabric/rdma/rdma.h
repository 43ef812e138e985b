// The rdma fabric: memory nodes reached by RDMA cards, or by Soft-RoCE, through rdma-core
// (docs/fabrics.md).
//
//  - A client comes in over a socket, as with tcp, with the same key, id, generation and fences;
//    the node then offers it RDMA, and the verbs go by a reliable connection of RDMA-CM. READ,
//    WRITE, compare-and-swap and fetch-and-add are the card's own; the node's processor does
//    nothing.
//  - Masked compare-and-swap is the cards' own where those of both sides have it (mlx5.h), unless
//    options.native_masked_cas says otherwise; else emulated (verbs.h, rule 8).
//  - Ends and errors are those of remote/endpoint.h. A node that shuts a client out destroys its
//  queue
//    pairs before it says so.
#pragma once

#include <cstdint>
#include <memory>

#include "fabric/rdma/device.h"
#include "fabric/rdma/queue.h"
#include "fabric/remote/options.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

struct RdmaOptions : remote::Options {
  DeviceChoice device;               // of this machine; without a name the one that leads there
  std::uint32_t mtu = kMtus.back();  // bytes of a packet's payload, at most: one of kMtus
};

// Comes in at every node. An error where one is not there, or cannot be reached by RDMA.
Result<std::unique_ptr<Fabric>> open_rdma(const RdmaOptions& options);

}  // namespace pando::fabric::rdma
