// The mapped fabric: memory nodes of this machine, or of a CXL memory that it shares with others,
// mapped into this process (docs/fabrics.md).
//
//  - A verb is a copy in memory, made by this process: nothing is faster. The node's own process
//    hands the memory over through its Unix socket, and does nothing more.
//  - Line atomicity across processes, and after any of them was killed: node/redo_slots.h.
//  - A thread watches the sockets: when a node's process is gone, batches for it end with
//    kUnavailable, until it is back with the memory that it had.
//  - fence() answers kBusy as long as the client's process is there: nothing can take mapped memory
//    away from a process but its end.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fabric/verbs.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::mapped {

struct MappedOptions {
  std::vector<wire::Place> nodes;  // Unix sockets, in the order of the nodes' ids
  std::string key;
  std::string cluster;
  std::chrono::milliseconds timeout{2000};
  bool native_masked_cas = true;
};

Result<std::unique_ptr<Fabric>> open_mapped(const MappedOptions& options);

}  // namespace pando::fabric::mapped
