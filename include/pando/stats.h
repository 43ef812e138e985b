// What things cost: exact counts, the same on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pando {

// Counts of verbs. A batch of verbs that is awaited once is one round trip, whatever it holds;
// it rings one doorbell at each memory node that it goes to.
struct Counters {
  std::uint64_t round_trips = 0;
  std::uint64_t doorbells = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t compare_swaps = 0;  // masked ones too
  std::uint64_t fetch_adds = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t retries = 0;  // optimistic reads and locks that had to be tried again

  Counters& operator+=(const Counters& other) {
    round_trips += other.round_trips;
    doorbells += other.doorbells;
    reads += other.reads;
    writes += other.writes;
    compare_swaps += other.compare_swaps;
    fetch_adds += other.fetch_adds;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    retries += other.retries;
    return *this;
  }
  bool operator==(const Counters&) const = default;
};

// What this compute node knows and remembers of the pool, by what it is for: caches, tables, lists.
// The sum of `parts` is `bytes`, and stays within the budget (or 64 KiB, where the budget is less).
// What holds nothing between operations grows with their number, not with the pool, and is not part
// of it: transfer buffers, which are reported apart, and, counted nowhere, the frames of coroutines
// that each thread keeps for the next ones (a few hundred KiB of each size that it uses) and what
// each worker's connections to memory nodes (tcp, rdma) receive into and send from.
struct ComputeMemory {
  std::uint64_t bytes = 0;
  std::uint64_t budget = 0;
  std::vector<std::pair<std::string, std::uint64_t>> parts;
  std::uint64_t transfer_buffers = 0;
};

struct MemoryNodeStats {
  std::uint16_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t reserved = 0;  // taken from the node by all compute nodes together, tables included
};

struct PoolStats {
  std::vector<MemoryNodeStats> memory_nodes;
  ComputeMemory compute;
  Counters operations;    // by the operations of this compute node's workers and plain calls
  Counters housekeeping;  // by its heartbeat, epochs and memory management in the background
  std::uint64_t epoch = 0;
  std::uint64_t blocks_allocated = 0;  // by this compute node, since it opened the pool
  std::uint64_t blocks_freed = 0;

  std::uint64_t remote_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& node : memory_nodes) sum += node.reserved;
    return sum;
  }
};

// What this compute node's handle of an index did and holds. Names depend on the index kind
// ("splits", "merges", "cache_misses"…); docs/protocols/<kind>.md explains them.
struct IndexStats {
  std::vector<std::pair<std::string, std::uint64_t>> counts;
  ComputeMemory compute;  // this index's share of the compute node's memory
};

}  // namespace pando
