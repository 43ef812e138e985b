// Census: a look at all free memory of a pool, for checks. Tells whether any block is free twice,
// and how much memory is neither free nor in use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pool/memory/allocator.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

struct Census {
  std::uint64_t reserved = 0;  // bytes of chunks that were ever handed out
  std::uint64_t free = 0;      // bytes of free chunks, of blocks on shared stacks or held free
  std::uint64_t ledgers = 0;   // bytes of ledgers' pages
  // Bytes that are none of these, less what is too short to be cut: of blocks in use, and lost.
  std::uint64_t other = 0;
  std::vector<std::string> twice;       // blocks that are free more than once
  std::vector<std::string> unfinished;  // what recycling has left behind
};

// `living`: every compute node of the pool that is neither dead nor closed. Retired blocks count as
// free. kBusy while memory is being recycled. REQUIRES: nothing happens in the pool meanwhile.
Task<Result<Census>> take_census(Operation& op, std::span<const Allocator* const> living);

}  // namespace pando::pool
