// Formatting: what turns fresh memory nodes into a pool, and knows one when it sees it.
//
// Node 0's state word is the lock: fresh → the formatter's client id → kFormatted, which comes
// last, when all nodes have their superblocks. The pool's id is written to node 0 first, so that
// one who takes over from a formatter that died knows which nodes that one had done. A formatter
// that needs longer than a lease is fenced and taken over: formatting takes a handful of round
// trips.
#pragma once

#include <cstdint>

#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

// Where a node's chunks start, and the least size that has one.
std::uint64_t first_chunk_of(std::size_t node);
std::uint64_t least_node_size(std::size_t node);

// The pool's id. See ComputeNode::open for errors; kDataLost where a node of the pool is fresh.
Task<Result<std::uint64_t>> format_or_check(Operation& op);

}  // namespace pando::pool
