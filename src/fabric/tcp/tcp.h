// The tcp fabric: memory nodes reached over sockets (docs/fabrics.md).
//
//  - Verbs are encoded as they are posted and sent together when the worker polls: one send,
//    however many batches.
//  - Which nodes there are: remote/cluster.h. When connections break, and what then becomes of
//    verbs: remote/endpoint.h.
#pragma once

#include <memory>

#include "fabric/remote/options.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::tcp {

// Comes in at every node. An error where one of the list is not there. With a registry, only node
// 0 must be, and who uses the fabric sees which others are.
Result<std::unique_ptr<Fabric>> open_tcp(const remote::Options& options);

}  // namespace pando::fabric::tcp
