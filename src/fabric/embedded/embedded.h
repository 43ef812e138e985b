// The embedded fabric: memory nodes inside this process, for one process and many threads.
//
// The default fabric, and the fastest: a verb is a copy in memory. Memory is zero at birth and gone
// with the last Fabric and Endpoint that use it.
//
//  - Line atomicity: line_memory.h.
//  - Batches complete inline, or overlap their cache misses: local_endpoint.h.
//  - Clients are Fabric objects. fence() answers kBusy while the client's object exists: nothing in
//    one process can take a thread's memory away.
#pragma once

#include <cstdint>
#include <memory>

#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric {

struct EmbeddedOptions {
  std::uint64_t bytes = 0;  // of all nodes together; divided evenly, in whole pages
  std::uint32_t nodes = 1;
  bool native_masked_cas = true;
  std::uint32_t onchip_bytes = 256 << 10;  // of each node
  bool huge_pages = true;

  static constexpr std::uint32_t kMaxNodes = 1024;
  static constexpr std::uint64_t kMinNodeBytes = std::uint64_t{1} << 20;
};

// Makes the memory nodes and the first client's attachment; further clients attach() to it.
Result<std::unique_ptr<Fabric>> open_embedded(const EmbeddedOptions& options);

}  // namespace pando::fabric
