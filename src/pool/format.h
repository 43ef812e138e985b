// Formatting: what turns fresh memory nodes into a pool, and knows one when it sees it.
//
// Node 0's state word is the lock: fresh → the formatter's client id → kFormatted, which comes
// last, when all nodes have their superblocks. The pool's id is written to node 0 first, so that
// one who takes over from a formatter that died knows which nodes that one had done. A formatter
// that needs longer than a lease is fenced and taken over: formatting takes a handful of round
// trips.
#pragma once

#include <cstdint>

#include "pool/layout.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

// Where a node's chunks start, and the least size that has one.
std::uint64_t first_chunk_of(std::size_t node, std::uint64_t node_bytes);
std::uint64_t least_memory_node_size(std::size_t node);

struct Formatted {
  std::uint64_t pool_id = 0;
  std::size_t nodes = 0;  // that the pool began with
};
// See ComputeNode::open for errors; kDataLost where a node of the pool is fresh.
Task<Result<Formatted>> format_or_check(Operation& op);

// ---- One node's superblock, for who adds nodes later (memory_nodes.h)

// Its first line: all but stacks and lists.
Task<Result<Superblock>> read_header(Operation& op, NodeId node);
// `pool_nodes`: that the pool begins or began with.
Superblock make_header(const fabric::Fabric& fabric, std::size_t node, std::size_t pool_nodes,
                       std::uint64_t pool_id);
// The line but its state. It is there whole or not at all.
Task<Status> write_header(Operation& op, const Superblock& header);
// Whether the state was `from`, and is `to` now.
Task<Result<bool>> swap_state(Operation& op, NodeId node, std::uint64_t from, std::uint64_t to);
// `looked`: how looking for it went.
Error missing_memory_node(const fabric::Fabric& fabric, std::size_t node, const Status& looked);

}  // namespace pando::pool
